// The variants of gated_scan_decay, gated_scan_carry and its backward on CUDA, in the order in
// which they are tried. Host only.
#include "cuda/gated_scan/carry_variants.h"

#include "cuda/gated_scan/layout.h"
#include "cuda/runtime/call_scope.h"
#include "cuda/runtime/choose_variant.h"
#include "cuda/runtime/dtype_table.h"
#include "cuda/runtime/plan.h"
#include "ops/gated_scan.h"

namespace tandem::cuda::gated_scan {
namespace {

constexpr const char* kDecay = "gated_scan_decay";
constexpr const char* kCarry = "gated_scan_carry";
constexpr const char* kCarryBackward = "gated_scan_carry_backward";

/// The same with the decays' dtypes: add(dtype, decay_dtype), Element, Decay.
template <class Add>
void for_each_decay(const Add& add) {
  for_each_dtype([&]<class Element>(DType dtype) {
    add.template operator()<Element, Element>(dtype, dtype);
    if constexpr (sizeof(Element) == 2) {
      add.template operator()<Element, float>(dtype, DType::kFloat32);
    }
  });
}

std::string name_of(const char* call, DType dtype, DType decay_dtype, int channels) {
  return std::string(call) + ".sm90." + to_string(dtype) +
         (decay_dtype == dtype ? "" : ".decay_" + to_string(decay_dtype)) +
         (channels > 1 ? ".vector" : ".scalar");
}

template <class Element>
void add_decay(std::vector<DecayVariant>& table, DType dtype) {
  constexpr int kChannels = kVectorChannels<Element>;
  const auto add = [&](int channels, auto launch) {
    table.push_back({name_of(kDecay, dtype, dtype, channels), dtype, dtype, channels, launch});
  };
  add(kChannels, &launch_decay<Element, kChannels>);
  add(1, &launch_decay<Element, 1>);
}

template <class Element, class Decay>
void add_carry(std::vector<CarryVariant>& table, DType dtype, DType decay_dtype) {
  constexpr int kChannels = kVectorChannels<Element>;
  const auto add = [&](int channels, auto launch) {
    table.push_back(
        {name_of(kCarry, dtype, decay_dtype, channels), dtype, decay_dtype, channels, launch});
  };
  add(kChannels, &launch_carry<Element, Decay, kChannels>);
  add(1, &launch_carry<Element, Decay, 1>);
}

template <class Element, class Decay>
void add_carry_backward(std::vector<CarryBackwardVariant>& table, DType dtype, DType decay_dtype) {
  constexpr int kChannels = kVectorChannels<Element>;
  const auto add = [&](int channels, auto launch) {
    table.push_back({name_of(kCarryBackward, dtype, decay_dtype, channels), dtype, decay_dtype,
                     channels, launch});
  };
  add(kChannels, &launch_carry_backward<Element, Decay, kChannels>);
  add(1, &launch_carry_backward<Element, Decay, 1>);
}

std::string start_problem(const char* name, const float* data) {
  if (reinterpret_cast<std::uintptr_t>(data) % 16 == 0) return "";
  return std::string(name) + " does not start at a multiple of 16 bytes";
}

template <class Problem>
std::string common_problem(const ChunkVariant<Problem>& variant, const Problem& p) {
  if (p.dtype != variant.dtype) {
    return "takes " + to_string(variant.dtype) + ", got " + to_string(p.dtype);
  }
  if (p.decay_dtype != variant.decay_dtype) {
    return "takes decays in " + to_string(variant.decay_dtype) + ", got " +
           to_string(p.decay_dtype);
  }
  if (std::string reason = length_problem(p.T); !reason.empty()) return reason;
  const std::int64_t vectors = ceil_div(p.D, variant.channels);
  const std::int64_t lines = kMaxIndex / vectors;  // of chunks; one at least, for total
  if (p.B > lines / (p.chunks() + 1)) {
    return "takes at most 2^31 - 1 vectors of channels times chunks, got B x T x D = " +
           std::to_string(p.B) + " x " + std::to_string(p.T) + " x " + std::to_string(p.D);
  }
  if (!variant.aligned()) return "";
  if (p.D % variant.channels != 0) {
    return "takes D a multiple of " + std::to_string(variant.channels) + ", got " +
           std::to_string(p.D);
  }
  std::string reason =
      layout_problem(p.log_decay ? "log_decay" : "decay", p.decay, p.decay_dtype, p);
  return reason.empty() ? start_problem("before", p.before) : reason;
}

template <class Problem>
const ChunkVariant<Problem>& choose_from(const char* call,
                                         const std::vector<ChunkVariant<Problem>>& table,
                                         const Problem& problem, const DeviceProperties& device,
                                         const CallOptions& options) {
  return choose_variant(call, table, device, options, [&](const ChunkVariant<Problem>& variant) {
    return reason_against(variant, problem);
  });
}

template <class Problem>
void run(const Problem& problem, const Context& context, const CallOptions& options) {
  const auto& variant = choose(problem, device_properties(problem.device), options);
  if (problem.B == 0) return;
  const CallScope scope(variant.name, problem.device.index);
  variant.launch(variant.name.c_str(), problem, context.stream.handle);
}

}  // namespace

const std::vector<DecayVariant>& decay_variants() {
  static const auto table = [] {
    std::vector<DecayVariant> rows;
    for_each_dtype([&]<class Element>(DType dtype) { add_decay<Element>(rows, dtype); });
    return rows;
  }();
  return table;
}

const std::vector<CarryVariant>& carry_variants() {
  static const auto table = [] {
    std::vector<CarryVariant> rows;
    for_each_decay([&]<class Element, class Decay>(DType dtype, DType decay_dtype) {
      add_carry<Element, Decay>(rows, dtype, decay_dtype);
    });
    return rows;
  }();
  return table;
}

const std::vector<CarryBackwardVariant>& carry_backward_variants() {
  static const auto table = [] {
    std::vector<CarryBackwardVariant> rows;
    for_each_decay([&]<class Element, class Decay>(DType dtype, DType decay_dtype) {
      add_carry_backward<Element, Decay>(rows, dtype, decay_dtype);
    });
    return rows;
  }();
  return table;
}

std::string reason_against(const DecayVariant& variant, const GatedScanDecayProblem& problem) {
  return common_problem(variant, problem);
}

std::string reason_against(const CarryVariant& variant, const GatedScanCarryProblem& problem) {
  std::string reason = common_problem(variant, problem);
  if (!reason.empty() || !variant.aligned()) return reason;
  reason = layout_problem("out", problem.out, problem.dtype, problem);
  if (reason.empty()) reason = layout_problem("gate", problem.gate, problem.dtype, problem);
  return reason.empty() ? start_problem("carry", problem.carry) : reason;
}

std::string reason_against(const CarryBackwardVariant& variant,
                           const GatedScanCarryBackwardProblem& problem) {
  std::string reason = common_problem(variant, problem);
  if (!reason.empty() || !variant.aligned()) return reason;
  reason = layout_problem("d_out", problem.d_out, problem.dtype, problem);
  if (reason.empty()) reason = layout_problem("gate", problem.gate, problem.dtype, problem);
  return reason.empty() ? start_problem("sums", problem.sums) : reason;
}

const DecayVariant& choose(const GatedScanDecayProblem& problem, const DeviceProperties& device,
                           const CallOptions& options) {
  return choose_from(kDecay, decay_variants(), problem, device, options);
}

const CarryVariant& choose(const GatedScanCarryProblem& problem, const DeviceProperties& device,
                           const CallOptions& options) {
  return choose_from(kCarry, carry_variants(), problem, device, options);
}

const CarryBackwardVariant& choose(const GatedScanCarryBackwardProblem& problem,
                                   const DeviceProperties& device, const CallOptions& options) {
  return choose_from(kCarryBackward, carry_backward_variants(), problem, device, options);
}

}  // namespace tandem::cuda::gated_scan

namespace tandem::cuda {

void gated_scan_decay(const GatedScanDecayProblem& problem, const Context& context,
                      const CallOptions& options) {
  gated_scan::run(problem, context, options);
}

void gated_scan_carry(const GatedScanCarryProblem& problem, const Context& context,
                      const CallOptions& options) {
  gated_scan::run(problem, context, options);
}

void gated_scan_carry_backward(const GatedScanCarryBackwardProblem& problem, const Context& context,
                               const CallOptions& options) {
  gated_scan::run(problem, context, options);
}

std::vector<VariantInfo> gated_scan_carry_variants(const DeviceProperties& device) {
  std::vector<VariantInfo> infos;
  const auto append = [&](const auto& table) {
    for (const auto& variant : table) {
      infos.push_back({"gated_scan", variant.name, sm90_problem(device)});
    }
  };
  append(gated_scan::decay_variants());
  append(gated_scan::carry_variants());
  append(gated_scan::carry_backward_variants());
  return infos;
}

}  // namespace tandem::cuda
