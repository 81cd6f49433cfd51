// The variants of gla_forward on CUDA, in the order in which they are tried. Host only.
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <string>
#include <vector>

#include "core/environment.h"
#include "cuda/gla/forward_config.h"
#include "cuda/gla/forward_params.h"
#include "cuda/gla/variants.h"
#include "cuda/runtime/cuda_check.h"

namespace tandem::cuda {
namespace {

template <class Element, int kKeyDim, int kValueDim>
void add_variants(std::vector<ForwardVariant>& table, DType dtype, bool tma) {
  using Config = ForwardConfig<Element, kKeyDim, kValueDim>;
  table.push_back({"gla_forward.sm90." + to_string(dtype) + ".c" + std::to_string(Config::kChunk) +
                       "_k" + std::to_string(kKeyDim) + "_v" + std::to_string(kValueDim) +
                       (tma ? "" : ".gather"),
                   dtype, kKeyDim, kValueDim, tma, &launch_forward<Config>});
}

template <class Element>
void add_widths(std::vector<ForwardVariant>& table, DType dtype, bool tma) {
#ifndef TANDEM_CUDA_DEV
  add_variants<Element, 64, 64>(table, dtype, tma);
  add_variants<Element, 64, 128>(table, dtype, tma);
  add_variants<Element, 128, 64>(table, dtype, tma);
#endif
  add_variants<Element, 128, 128>(table, dtype, tma);
}

/// Why no call can use a variant on such a device, "" when some can.
std::string device_problem(const DeviceProperties& device) {
  if (device.compute_major == 9 && device.compute_minor == 0) return "";
  return "needs compute capability 9.0, " + device.name + " has " +
         std::to_string(device.compute_major) + "." + std::to_string(device.compute_minor);
}

/// The first variant that accepts the problem, or Unsupported with every variant's reason.
const ForwardVariant& choose(const GlaForwardProblem& problem, const DeviceProperties& device) {
  const std::string wanted = variant_switch();
  std::string reasons;
  for (const ForwardVariant& variant : forward_variants()) {
    std::string reason = device_problem(device);
    if (reason.empty() && !wanted.empty() && wanted != variant.name) {
      reason = "TANDEM_VARIANT asks for " + wanted;
    }
    if (reason.empty()) reason = variant.supports(problem);
    if (reason.empty()) return variant;
    reasons += "\n  " + variant.name + ": " + reason;
  }
  throw Unsupported("[gla_forward] no variant on " + device.name +
                    " takes these arguments:" + reasons);
}

}  // namespace

const std::vector<ForwardVariant>& forward_variants() {
  static const std::vector<ForwardVariant> table = [] {
    std::vector<ForwardVariant> rows;
    for (const bool tma : {true, false}) {
      add_widths<__nv_bfloat16>(rows, DType::kBFloat16, tma);
#ifndef TANDEM_CUDA_DEV
      add_widths<__half>(rows, DType::kFloat16, tma);
#endif
    }
    return rows;
  }();
  return table;
}

ForwardTilePlans plan_tiles(const GlaForwardProblem& problem) {
  constexpr int kRows = 64;  // ForwardConfig::kChunk of every variant
  const TileExtents keys{problem.B, problem.T, problem.HQ, problem.K};
  const TileExtents values{problem.B, problem.T, problem.H, problem.V};
  return {plan_tile("q", problem.q, problem.dtype, keys, kRows),
          plan_tile("k", problem.k, problem.dtype, keys, kRows),
          plan_tile("v", problem.v, problem.dtype, values, kRows),
          plan_tile("o", problem.o, problem.dtype, values, kRows)};
}

std::string ForwardVariant::supports(const GlaForwardProblem& problem) const {
  if (problem.dtype != dtype)
    return "takes " + to_string(dtype) + ", got " + to_string(problem.dtype);
  if (problem.K > key_dim) {
    return "takes K <= " + std::to_string(key_dim) + ", got " + std::to_string(problem.K);
  }
  if (problem.V > value_dim) {
    return "takes V <= " + std::to_string(value_dim) + ", got " + std::to_string(problem.V);
  }
  constexpr std::int64_t kLargest = (std::int64_t{1} << 31) - 1;
  if (problem.T > kLargest - 64) return "takes T < 2^31 - 64, got " + std::to_string(problem.T);
  if (problem.N * problem.H > kLargest) {
    return "takes at most 2^31 - 1 sequences times heads, got " +
           std::to_string(problem.N * problem.H);
  }
  if (!tma) return "";
  const ForwardTilePlans plans = plan_tiles(problem);
  for (const TensorMapPlan* plan : {&plans.q, &plans.k, &plans.v, &plans.o}) {
    if (!plan->problem.empty()) return plan->problem;
  }
  return "";
}

void gla_forward(const GlaForwardProblem& problem, const Context& context) {
  const ForwardVariant& variant = choose(problem, device_properties(problem.device));
  if (problem.B == 0) return;
  const DeviceGuard guard(problem.device.index);
  GlaForwardParams params;
  params.problem = problem;
  params.tma = variant.tma;
  if (variant.tma) {
    const ForwardTilePlans plans = plan_tiles(problem);
    params.q_map = encode(plans.q);
    params.k_map = encode(plans.k);
    params.v_map = encode(plans.v);
    params.o_map = encode(plans.o);
  }
  variant.launch(variant.name.c_str(), params, context.stream.handle);
}

std::size_t gla_forward_workspace_bytes(const GlaForwardProblem& problem,
                                        const DeviceProperties& device) {
  choose(problem, device);
  return 0;  // states stay in registers
}

std::vector<VariantInfo> gla_variants(const DeviceProperties& device) {
  std::vector<VariantInfo> infos;
  for (const ForwardVariant& variant : forward_variants()) {
    infos.push_back({"gla", variant.name, device_problem(device)});
  }
  return infos;
}

}  // namespace tandem::cuda
