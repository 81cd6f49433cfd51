// The variants of gla_step on CUDA, in the order in which they are tried. Host only.
#include "cuda/gla/step.h"

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "cuda/gla/step/config.h"
#include "cuda/gla/step/launch.h"
#include "cuda/runtime/call_scope.h"
#include "cuda/runtime/choose_variant.h"
#include "cuda/runtime/plan.h"
#include "ops/gla.h"

namespace tandem::cuda::gla {
namespace {

template <class Config>
void add_variant(std::vector<StepVariant>& table, DType dtype, DType state_dtype,
                 int tiles_per_multiprocessor = 0) {
  table.push_back({"gla_step.sm90." + to_string(dtype) + ".state_" + to_string(state_dtype) + ".v" +
                       std::to_string(Config::kColumns) + (Config::kVector > 1 ? "" : ".scalar"),
                   dtype, state_dtype, Config::kVector, Config::kColumns, tiles_per_multiprocessor,
                   &launch_step<Config>});
}

template <class Element>
void add_variants(std::vector<StepVariant>& table, DType dtype) {
  add_variant<StepWideConfig<Element>>(table, dtype, DType::kFloat32, 4);
  add_variant<StepVectorConfig<Element, float>>(table, dtype, DType::kFloat32);
  add_variant<StepVectorConfig<Element, __nv_bfloat16>>(table, dtype, DType::kBFloat16);
  add_variant<StepScalarConfig<Element, float>>(table, dtype, DType::kFloat32);
  add_variant<StepScalarConfig<Element, __nv_bfloat16>>(table, dtype, DType::kBFloat16);
}

/// Says why rows of the state cannot be read 16 bytes at a time, "" when they can.
std::string layout_problem(const GlaStepProblem& problem) {
  const StateTensor& state = problem.state;
  if (reinterpret_cast<std::uintptr_t>(state.data) % 16 != 0) {
    return "state does not start at a multiple of 16 bytes";
  }
  const auto check = [&](const char* axis, std::int64_t extent, std::int64_t stride) {
    const std::int64_t bytes = stride * size_of(problem.state_dtype);
    return extent <= 1 || bytes % 16 == 0
               ? ""
               : "state has a " + std::string(axis) + " stride of " + std::to_string(bytes) +
                     " bytes, not a multiple of 16";
  };
  std::string reason = check("batch", problem.B, state.batch_stride);
  if (reason.empty()) reason = check("head", problem.H, state.head_stride);
  if (reason.empty()) reason = check("key", problem.K, state.key_stride);
  return reason;
}

}  // namespace

std::string StepVariant::supports(const GlaStepProblem& problem, const DeviceProperties& device,
                                  bool batch_invariant) const {
  if (problem.dtype != dtype)
    return "takes " + to_string(dtype) + ", got " + to_string(problem.dtype);
  if (problem.state_dtype != state_dtype) {
    return "takes a state in " + to_string(state_dtype) + ", got " + to_string(problem.state_dtype);
  }
  if (problem.V % vector != 0) {
    return "takes V a multiple of " + std::to_string(vector) + ", got " + std::to_string(problem.V);
  }
  if (problem.K > kMaxIndex - 1023) {
    return "takes K < 2^31 - 1024, got " + std::to_string(problem.K);
  }
  const std::int64_t tiles = ceil_div(problem.V, columns);
  if (problem.B > kMaxIndex / (problem.H * tiles)) {
    return "takes at most 2^31 - 1 batches times heads times tiles of V, got " +
           std::to_string(problem.B) + " x " + std::to_string(problem.H) + " x " +
           std::to_string(tiles);
  }
  if (batch_invariant && tiles_per_multiprocessor > 0) return "is for large B: not batch-invariant";
  const int fewest_tiles = tiles_per_multiprocessor * device.multiprocessors;
  if (problem.B * problem.H * tiles < fewest_tiles) {
    return "takes at least " + std::to_string(fewest_tiles) + " tiles of " +
           std::to_string(columns) + " columns, got " +
           std::to_string(problem.B * problem.H * tiles);
  }
  return vector == 1 ? "" : layout_problem(problem);
}

const std::vector<StepVariant>& step_variants() {
  static const std::vector<StepVariant> table = [] {
    std::vector<StepVariant> rows;
    add_variants<__nv_bfloat16>(rows, DType::kBFloat16);
#ifndef TANDEM_CUDA_DEV
    add_variants<__half>(rows, DType::kFloat16);
#endif
    return rows;
  }();
  return table;
}

}  // namespace tandem::cuda::gla

namespace tandem::cuda {

void gla_step(const GlaStepProblem& problem, const Context& context, const CallOptions& options) {
  const DeviceProperties& device = device_properties(problem.device);
  const gla::StepVariant& variant = choose_variant(
      "gla_step", gla::step_variants(), device, options, [&](const gla::StepVariant& one) {
        return one.supports(problem, device, options.batch_invariant);
      });
  if (problem.B == 0) return;
  const CallScope scope(variant.name, problem.device.index);
  variant.launch(variant.name.c_str(), problem, context.stream.handle);
}

std::vector<VariantInfo> gla_step_variants(const DeviceProperties& device) {
  std::vector<VariantInfo> infos;
  for (const gla::StepVariant& variant : gla::step_variants()) {
    infos.push_back({"gla", variant.name, sm90_problem(device)});
  }
  return infos;
}

}  // namespace tandem::cuda
