// gla for the tools: its tensors from a file, its call, its cost.
#include "cli/ops/gla.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <stdexcept>

#include "cli/calls/file_inputs.h"
#include "tandem/ops/gla.h"

namespace tandem::tools {
namespace {

const std::vector<std::string> kInputs = {"q", "k", "v"};
const std::vector<std::string> kOptional = {"log_decay", "initial_state", "cu_seqlens"};

TensorSet from_file(const SafetensorsFile& file, const Settings& settings) {
  TensorSet set = read_inputs(file, "gla forward", kInputs, kOptional);
  bool wants_state = set.find("initial_state") != nullptr;
  for (const auto& [name, text] : settings) {
    if (name == "scale") {
      set.scalars["scale"] = parse_number(name, text);
    } else if (name == "output_final_state") {
      wants_state = parse_bool(name, text);
    } else {
      throw std::runtime_error(fmt::format(
          "--set {}: gla forward has no such setting (scale, output_final_state)", name));
    }
  }
  const Dims q = set.get("q").shape;
  const NamedTensor v = set.get("v");
  add_tensor(set, "o", v.dtype, v.shape, contiguous_strides(v.shape), true);
  // Shapes that do not fit together are refused by the call itself.
  if (!wants_state || q.rank() != 4 || v.shape.rank() != 4) return set;
  const NamedTensor* offsets = set.find("cu_seqlens");
  const bool lists = offsets != nullptr && offsets->shape.rank() == 1 && offsets->shape[0] > 0;
  const Dims state{lists ? offsets->shape[0] - 1 : q[0], v.shape[2], q[3], v.shape[3]};
  std::int64_t bytes = sizeof(float);
  for (const std::int64_t extent : state) {
    if (__builtin_mul_overflow(bytes, extent, &bytes) || bytes > std::int64_t{1} << 42) {
      throw std::runtime_error(file.path + ": final_state " + to_string(state) + " is too large");
    }
  }
  add_tensor(set, "final_state", DType::kFloat32, state, contiguous_strides(state), true);
  return set;
}

GlaForwardArgs to_args(const TensorSet& set, const std::vector<void*>& bases, Device device) {
  const Views views(set, bases, device);
  GlaForwardArgs args;
  args.q = views.required("q");
  args.k = views.required("k");
  args.v = views.required("v");
  args.o = views.required("o");
  args.log_decay = views.optional("log_decay");
  args.initial_state = views.optional("initial_state");
  args.cu_seqlens = views.optional("cu_seqlens");
  args.final_state = views.optional("final_state");
  if (set.scalars.count("scale")) args.scale = set.scalars.at("scale");
  return args;
}

void call(const TensorSet& set, const std::vector<void*>& bases, Device device,
          const Context& context) {
  gla_forward(to_args(set, bases, device), context);
}

std::size_t workspace_bytes(const TensorSet& set, const std::vector<void*>& bases, Device device) {
  return gla_forward_workspace_bytes(to_args(set, bases, device), device_properties(device));
}

}  // namespace

GlaForwardProblem problem_at(const TensorSet& set, const std::vector<void*>& bases, Device device) {
  return make_problem(to_args(set, bases, device));
}

GlaForwardProblem host_problem(const TensorSet& set) {
  return problem_at(set, host_bases(set), Device::cpu());
}

TokenRange tokens_of(const GlaRecurrence& recurrence, std::int64_t n) {
  if (!recurrence.cu_seqlens) return {0, recurrence.T};
  const auto boundary = [&](std::int64_t i) {
    return std::clamp<std::int64_t>(recurrence.cu_seqlens[i], 0, recurrence.T);
  };
  return {boundary(n), std::max(boundary(n), boundary(n + 1))};
}

double token_count(const GlaRecurrence& recurrence) {
  double tokens = 0;
  for (std::int64_t n = 0; n < recurrence.N; ++n) {
    const TokenRange range = tokens_of(recurrence, n);
    tokens += static_cast<double>(range.end - range.begin);
  }
  return tokens;
}

std::vector<std::int64_t> heads_to_check(const GlaRecurrence& recurrence, bool sampled) {
  const std::int64_t all = recurrence.N * recurrence.H;
  const double average = token_count(recurrence) / std::max<double>(recurrence.N, 1);
  const double cost = average * recurrence.K * recurrence.V;
  const auto affordable = static_cast<std::int64_t>(4e8 / (cost + 1));
  const std::int64_t wanted = sampled ? std::min(all, std::max<std::int64_t>(4, affordable)) : all;
  std::vector<std::int64_t> heads;
  for (std::int64_t i = 0; i < wanted; ++i) {
    heads.push_back(wanted == all ? i : i * (all - 1) / (wanted - 1));
  }
  return heads;
}

std::string gla_shape(const Dims& keys, const Dims& values) {
  const std::string heads = keys[2] == values[2] ? fmt::format("H{}", values[2])
                                                 : fmt::format("H{}/{}", values[2], keys[2]);
  return fmt::format("B{} T{} {} K{} V{}", keys[0], keys[1], heads, keys[3], values[3]);
}

namespace {

/// Matrix work of the chunked algorithm at chunk C = 64. Per chunk and head: Q K^T is C*C*K
/// multiply-adds, Q S and K^T V are C*K*V each, (Q K^T) V is C*C*V; counted per token, so a partial
/// chunk counts partly.
Cost cost(const TensorSet& set) {
  const GlaForwardProblem problem = host_problem(set);
  const double K = problem.K, V = problem.V;
  constexpr double C = 64;
  return {bytes_of(set, kGlaForward),
          token_count(problem) * problem.H * 2 * (C * K + 2 * K * V + C * V)};
}

std::string shape(const TensorSet& set) {
  return gla_shape(set.get("q").shape, set.get("v").shape);
}

}  // namespace

const Operation kGlaForward = {
    .name = "gla",
    .direction = "forward",
    .function = "gla_forward",
    .inputs = kInputs,
    .optional_inputs = kOptional,
    .outputs = {"o", "final_state"},
    .make = make_gla,
    .from_file = from_file,
    .call = call,
    .workspace_bytes = workspace_bytes,
    .expect = expect_gla,
    .cost = cost,
    .shape = shape,
    .baselines = {{"unfused", "unfused.cublaslt", unfused_gla, unfused_gla_workspace_bytes}}};

}  // namespace tandem::tools
