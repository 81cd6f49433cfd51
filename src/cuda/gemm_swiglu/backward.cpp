// gemm_swiglu_backward on CUDA: with the slopes that the forward kept it is the backward of a
// projection with two segments, behind a norm where there is one. Host only.
#include "core/call_options.h"
#include "cuda/gemm_swiglu/forward_plan.h"
#include "cuda/runtime/call_scope.h"
#include "cuda/runtime/choose_variant.h"
#include "ops/gemm_swiglu.h"
#include "ops/projection.h"
#include "ops/rms_norm_gemm.h"

namespace tandem::cuda::gemm_swiglu {
namespace {

constexpr const char* kBackward = "gemm_swiglu_backward";

struct BackwardVariant {
  std::string name;
  DType dtype;
};

const std::vector<BackwardVariant>& backward_variants() {
  static const auto table = [] {
    std::vector<BackwardVariant> rows;
    for (const DType dtype : {DType::kBFloat16, DType::kFloat16}) {
#ifdef TANDEM_CUDA_DEV
      if (dtype == DType::kFloat16) continue;
#endif
      rows.push_back({std::string(kBackward) + ".sm90." + to_string(dtype), dtype});
    }
    return rows;
  }();
  return table;
}

ProjectionBackwardSegment segment_of(const GemmSwigluBackwardProblem& problem, bool gate) {
  ProjectionBackwardSegment segment;
  segment.columns = problem.F;
  segment.kept = ProjectionKept::kSlope;
  segment.weight = gate ? problem.gate_weight : problem.up_weight;
  segment.out_dtype = problem.dtype;
  segment.d_out = problem.d_out;
  segment.slope = gate ? problem.gate_slope : problem.up_slope;
  segment.d_weight_dtype = gate ? problem.d_gate_weight_dtype : problem.d_up_weight_dtype;
  segment.d_weight = gate ? problem.d_gate_weight : problem.d_up_weight;
  return segment;
}

RmsNormGemmBackwardProblem products_of(const GemmSwigluBackwardProblem& problem) {
  RmsNormGemmBackwardProblem made;
  ProjectionBackwardProblem& products = made.projection;
  products.dtype = problem.dtype;
  products.device = problem.device;
  products.M = problem.M;
  products.d = problem.d;
  products.x = problem.x;
  products.segment_count = 2;
  products.segments[0] = segment_of(problem, true);
  products.segments[1] = segment_of(problem, false);
  products.dx = problem.dx;
  products.accumulate = problem.accumulate;
  made.norm = problem.norm;
  made.d_norm_weight_dtype = problem.d_norm_weight_dtype;
  made.d_norm_weight = problem.d_norm_weight;
  made.addend = problem.addend;
  return made;
}

const BackwardVariant& choose(const GemmSwigluBackwardProblem& problem,
                              const DeviceProperties& device, const CallOptions& options) {
  return choose_variant(kBackward, backward_variants(), device, options,
                        [&](const BackwardVariant& one) -> std::string {
                          if (one.dtype == problem.dtype) return "";
                          return "takes " + to_string(one.dtype) + ", got " +
                                 to_string(problem.dtype);
                        });
}

}  // namespace
}  // namespace tandem::cuda::gemm_swiglu

namespace tandem::cuda {

using namespace gemm_swiglu;

void gemm_swiglu_backward(const GemmSwigluBackwardProblem& problem, const Context& context,
                          const CallOptions& options) {
  const BackwardVariant& variant = choose(problem, device_properties(problem.device), options);
  const CallScope scope(variant.name, problem.device.index);
  const CallOptions inner{.batch_invariant = options.batch_invariant};
  const RmsNormGemmBackwardProblem products = products_of(problem);
  if (problem.norm.weight == nullptr) {
    projection_backward(products.projection, context, inner);
  } else {
    rms_norm_gemm_backward(products, context, inner);
  }
}

std::size_t gemm_swiglu_backward_workspace_bytes(const GemmSwigluBackwardProblem& problem,
                                                 const DeviceProperties& device,
                                                 const CallOptions& options) {
  choose(problem, device, options);
  const CallOptions inner{.batch_invariant = options.batch_invariant};
  const RmsNormGemmBackwardProblem products = products_of(problem);
  return problem.norm.weight == nullptr
             ? projection_backward_workspace_bytes(products.projection, device, inner)
             : rms_norm_gemm_backward_workspace_bytes(products, device, inner);
}

std::vector<VariantInfo> gemm_swiglu_variants(const DeviceProperties& device) {
  std::vector<VariantInfo> infos;
  for (const ForwardVariant& variant : forward_variants()) {
    infos.push_back({"gemm_swiglu", variant.name, sm90_problem(device)});
  }
  for (const BackwardVariant& variant : backward_variants()) {
    infos.push_back({"gemm_swiglu", variant.name, sm90_problem(device)});
  }
  return infos;
}

}  // namespace tandem::cuda
