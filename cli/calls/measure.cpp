#include "cli/calls/measure.h"

#include <omp.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstring>
#include <deque>
#include <map>
#include <optional>

#include "core/float16.h"
#include "cpu/matmul.h"
#include "tandem/error.h"

namespace tandem::tools {
namespace {

double now_us() {
  const auto now = std::chrono::steady_clock::now().time_since_epoch();
  return std::chrono::duration<double, std::micro>(now).count();
}

/// Returns microseconds of the fastest of a few runs: a ceiling is what the machine can do
/// undisturbed.
template <class Body>
double fastest_us(int runs, const Body& body) {
  double fastest = INFINITY;
  for (int i = 0; i < runs; ++i) {
    const double start = now_us();
    body();
    fastest = std::min(fastest, now_us() - start);
  }
  return fastest;
}

double cpu_copy_tbps() {
  constexpr std::size_t kBytes = std::size_t{256} << 20;  // far beyond any cache
  const HostBuffer from(kBytes);
  HostBuffer to(kBytes);
  const double us = fastest_us(5, [&] {
#pragma omp parallel
    {
      const std::size_t part = kBytes / omp_get_num_threads();
      const std::size_t begin = part * omp_get_thread_num();
      std::memcpy(to.data() + begin, from.data() + begin, part);
    }
  });
  return 2 * kBytes / us * 1e-6;
}

double cpu_matrix_tflops() {
  constexpr std::int64_t kSize = 512;
  const cpu::MatmulProvider provider = cpu::default_matmul_provider();
  const DType dtype = cpu::matmul_prefers_bf16(provider) ? DType::kBFloat16 : DType::kFloat32;
  const RandomStream random(1, "ceiling");
  const int threads = omp_get_max_threads();
  const auto multiply_all = [&](int repeats) {
#pragma omp parallel num_threads(threads)
    {
      std::vector<float> operands(kSize * kSize), c(kSize * kSize);
      for (std::int64_t i = 0; i < kSize * kSize; ++i) {
        store(dtype, operands.data(), i, random.normal(i));
      }
      cpu::MatmulArgs args;
      args.M = args.N = args.K = kSize;
      args.dtype = dtype;
      args.a = args.b = {operands.data(), kSize, false};
      args.c = c.data();
      args.c_stride = kSize;
      for (int i = 0; i < repeats; ++i) cpu::matmul(provider, args);
    }
  };
  // why the difference of two runs: it leaves out filling the operands and what the first product
  // prepares.
  const double one = fastest_us(3, [&] { multiply_all(1); });
  const double five = fastest_us(3, [&] { multiply_all(5); });
  return 4 * 2.0 * kSize * kSize * kSize * threads / std::max(five - one, 1.0) * 1e-6;
}

constexpr double kLongest = 2e6;  // microseconds that the samples of a call may take in all
constexpr std::size_t kFewest = 3;

/// Times `sample`, which returns microseconds, so often, or less where that takes too long.
template <class Sample>
std::vector<double> take(int wanted, const Sample& sample) {
  std::vector<double> samples;
  const double begin = now_us();
  while (static_cast<int>(samples.size()) < wanted &&
         (samples.size() < kFewest || now_us() - begin < kLongest)) {
    samples.push_back(sample());
  }
  return samples;
}

std::vector<double> time_cpu(const Operation& operation, const TensorSet& set, int replays) {
  Placement placement(set, Device::cpu());
  const auto call = [&] { operation.call(set, placement.bases(), Device::cpu(), {}); };
  call();
  return take(replays, [&] {
    const double start = now_us();
    call();
    return now_us() - start;
  });
}

/// Copies of a call's tensors in a GPU's memory, to be called in turn, and a workspace for all.
class RotatedCall {
 public:
  RotatedCall(const TimedOperation& timed, Device device) : timed_(timed), device_(device) {
    const TensorSet& set = *timed.set;
    const double bytes = std::max(static_cast<double>(set.bytes()), 1.0);  // a cost may count twice
    const double l2_bytes = static_cast<double>(device_properties(device).l2_bytes);
    // As many as layers of a model behind each other, where there is room for them.
    constexpr double kRoom = 8e9;
    const int fewest = 8 * bytes <= kRoom ? 8 : 2;
    const int sets = std::clamp(static_cast<int>(std::ceil(5.0 * l2_bytes / bytes)), fewest, 256);
    placements_.reserve(sets);
    for (int i = 0; i < sets; ++i) placements_.emplace_back(set, device);
    workspace_bytes_ = timed.operation->workspace_bytes(set, placements_[0].bases(), device);
    workspace_.emplace(device.index, std::max<std::size_t>(workspace_bytes_, 256));
  }

  gpu::TimedCall call() {
    const auto run = [this](int set, void* stream) {
      timed_.operation->call(
          *timed_.set, placements_[set].bases(), device_,
          {.stream = {stream}, .workspace = {workspace_->data(), workspace_bytes_}});
    };
    return {run, static_cast<int>(placements_.size())};
  }

 private:
  TimedOperation timed_;
  Device device_;
  std::vector<Placement> placements_;
  std::size_t workspace_bytes_ = 0;
  std::optional<gpu::Memory> workspace_;
};

}  // namespace

Timing summarize(std::vector<double> samples) {
  if (samples.empty()) return {};
  std::sort(samples.begin(), samples.end());
  const auto quantile = [&](double part) {
    const double at = part * static_cast<double>(samples.size() - 1);
    const auto below = static_cast<std::size_t>(at);
    const std::size_t above = std::min(below + 1, samples.size() - 1);
    return samples[below] + (samples[above] - samples[below]) * (at - static_cast<double>(below));
  };
  return {quantile(0.5), quantile(0.1), quantile(0.9)};
}

const Ceilings& ceilings(Device device) {
  static std::map<std::string, Ceilings> known;
  const auto [at, is_new] = known.try_emplace(to_string(device));
  if (!is_new) return at->second;
  if (device.type == DeviceType::kCpu) {
    at->second = {cpu_copy_tbps(), cpu_matrix_tflops()};
  } else {
    const gpu::Ceilings measured = gpu::ceilings(device.index);
    at->second = {measured.copy_tbps, measured.bf16_tflops};
  }
  return at->second;
}

double floor_us(const Cost& cost, const Ceilings& ceilings) {
  return std::max(cost.bytes / ceilings.copy_tbps, cost.flops / ceilings.bf16_tflops) * 1e-6;
}

Timing time_call(const Operation& operation, const TensorSet& set, Device device, int replays) {
  return time_calls({{&operation, &set}}, device, replays).front();
}

std::vector<Timing> time_calls(const std::vector<TimedOperation>& calls, Device device,
                               int replays) {
  std::vector<Timing> timings;
  if (device.type == DeviceType::kCpu) {
    for (const TimedOperation& one : calls) {
      timings.push_back(summarize(time_cpu(*one.operation, *one.set, replays)));
    }
    return timings;
  }
  std::deque<RotatedCall> rotated;
  std::vector<gpu::TimedCall> timed;
  for (const TimedOperation& one : calls) {
    timed.push_back(rotated.emplace_back(one, device).call());
  }
  for (auto& samples : gpu::time(device.index, timed, replays)) {
    timings.push_back(summarize(std::move(samples)));
  }
  return timings;
}

HostTiming time_host(const Operation& operation, const TensorSet& set, Device device, int rounds) {
  Placement placement(set, device);
  const PreparedCalls calls(operation, set, placement.bases(), device);
  const bool cuda = device.type == DeviceType::kCuda;
  Context context;
  std::optional<gpu::Memory> workspace;
  if (cuda) {
    const std::size_t bytes = calls.workspace_bytes();
    workspace.emplace(device.index, std::max<std::size_t>(bytes, 256));
    context.workspace = {workspace->data(), bytes};
  }
  const auto round = [&](const auto& call) {
    if (cuda) gpu::synchronize(device.index);
    const double start = now_us();
    for (int i = 0; i < kHostCalls; ++i) call();
    return (now_us() - start) / kHostCalls;
  };
  const auto timing = [&](const auto& call) {
    round(call);  // warms up
    return summarize(take(rounds, [&] { return round(call); }));
  };
  const HostTiming host = {timing([&] { calls.run(context); }),
                           timing([&] { calls.workspace_bytes(); })};
  if (cuda) gpu::synchronize(device.index);  // before the memory goes
  return host;
}

std::string chosen_variant(const Operation& operation, const TensorSet& set, Placement& placement) {
  if (operation.calls.size() == 1 && placement.device().type == DeviceType::kCuda) {
    operation.call(set, placement.bases(), placement.device(), {});
    return last_variant();
  }
  for (const std::string& variant : available_variants(operation, placement.device())) {
    try {
      with_variant(operation, variant).call(set, placement.bases(), placement.device(), {});
      return variant;
    } catch (const Unsupported&) {
    }
  }
  operation.call(set, placement.bases(), placement.device(), {});  // throws, listing every reason
  return "";
}

std::string call_variant(const Operation& operation, const TensorSet& set, Placement& placement,
                         const Baseline* baseline) {
  if (baseline == nullptr && operation.variant.empty()) {
    return chosen_variant(operation, set, placement);
  }
  operation.call(set, placement.bases(), placement.device(), {});
  return baseline != nullptr ? baseline->variant : operation.variant;
}

}  // namespace tandem::tools
