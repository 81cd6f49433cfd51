// rms_norm_gemm: its tables, and arguments -> checked problem. Host only.
#include "ops/rms_norm_gemm.h"

#include <cmath>
#include <string>
#include <utility>

#include "ops/call.h"
#include "ops/segments.h"

namespace tandem {
namespace {

using Forward = RmsNormGemmForwardArgs;
using Backward = RmsNormGemmBackwardArgs;
using Segment = RmsNormGemmSegment;
using Gradient = RmsNormGemmSegmentGradient;

template <std::size_t i>
void append_forward_rows(std::vector<Parameter>& table) {
  const auto add = [&](Parameter row) { table.push_back(std::move(row)); };
  add(segment_row<Forward, &Segment::weight, i>("weight#", Role::kInput, "C#,d", Element::kSame));
  add(segment_row<Forward, &Segment::bias, i>("bias#", Role::kInput, "C#", Element::kSameOrFp32));
  add(segment_row<Forward, &Segment::out, i>("out#", Role::kOutput, "M,C#", Element::kSameOrFp32)
          .made(numbered("weight#", i)));
}

template <std::size_t i>
void append_backward_rows(std::vector<Parameter>& table) {
  const auto add = [&](Parameter row) { table.push_back(std::move(row)); };
  add(segment_row<Backward, &Gradient::weight, i>("weight#", Role::kInput, "C#,d", Element::kSame));
  add(segment_row<Backward, &Gradient::bias, i>("bias#", Role::kInput, "C#", Element::kSameOrFp32));
  add(segment_row<Backward, &Gradient::d_out, i>("d_out#", Role::kInput, "M,C#",
                                                 Element::kSameOrFp32));
  add(segment_gradient<Backward, &Gradient::d_weight, i>("d_weight#", "weight#", false));
  add(segment_gradient<Backward, &Gradient::d_bias, i>("d_bias#", "bias#", true));
}

template <std::size_t... segments>
std::vector<Parameter> forward_table(std::index_sequence<segments...>) {
  std::vector<Parameter> table = {
      input<&Forward::x>("x", "M,d", Element::kMatrix),
      input<&Forward::norm_weight>("norm_weight", "d", Element::kSameOrFp32),
      number<&Forward::eps>("eps"), input<&Forward::rstd>("rstd", "M", Element::kFp32)};
  (append_forward_rows<segments>(table), ...);
  table.push_back(output<&Forward::kept_rstd>("kept_rstd", "M", Element::kFp32));
  return table;
}

template <std::size_t... segments>
std::vector<Parameter> backward_table(std::index_sequence<segments...>) {
  std::vector<Parameter> table = {
      input<&Backward::x>("x", "M,d", Element::kMatrix),
      input<&Backward::norm_weight>("norm_weight", "d", Element::kSameOrFp32),
      input<&Backward::rstd>("rstd", "M", Element::kFp32).or_kept("kept_rstd"),
      gradient<&Backward::dx>("dx", "x"),
      gradient<&Backward::d_norm_weight>("d_norm_weight", "norm_weight").also_fp32(),
      flag<&Backward::accumulate>("accumulate")};
  (append_backward_rows<segments>(table), ...);
  return table;
}

using Segments = std::make_index_sequence<kMostRmsNormGemmSegments>;

/// Checks what the table does not say of eps, and returns it.
double eps_of(const Signature& signature, const Forward& args) {
  constexpr double kDefault = 1e-6;
  if (!args.eps) return args.rstd ? 0 : kDefault;
  const double eps = *args.eps;
  if (!std::isfinite(eps))
    refuse(signature.name(), "eps must be finite, got " + std::to_string(eps));
  if (eps < 0) refuse(signature.name(), "eps must not be negative, got " + std::to_string(eps));
  if (args.rstd) refuse(signature.name(), "eps must not be given beside rstd, which includes it");
  return eps;
}

static_assert(kMostRmsNormGemmSegments <= kMostProjectionSegments);

}  // namespace

const Signature& rms_norm_gemm_forward_signature() {
  static const Signature signature =
      make_signature<Forward>("rms_norm_gemm_forward", forward_table(Segments()),
                              {cpu::rms_norm_gemm_forward, TANDEM_CUDA_ENTRY(rms_norm_gemm_forward),
                               TANDEM_CUDA_ENTRY(rms_norm_gemm_forward_workspace_bytes)});
  return signature;
}

const Signature& rms_norm_gemm_backward_signature() {
  static const Signature signature = make_signature<Backward>(
      "rms_norm_gemm_backward", backward_table(Segments()),
      {cpu::rms_norm_gemm_backward, TANDEM_CUDA_ENTRY(rms_norm_gemm_backward),
       TANDEM_CUDA_ENTRY(rms_norm_gemm_backward_workspace_bytes)});
  return signature;
}

RmsNormGemmForwardProblem make_problem(const RmsNormGemmForwardArgs& args) {
  const Signature& signature = rms_norm_gemm_forward_signature();
  check_segments(signature, args, kMostRmsNormGemmSegments);
  RmsNormGemmForwardProblem problem;
  problem.norm.eps = eps_of(signature, args);
  signature.check(&args);
  set_sizes(problem.projection, args);
  for (std::size_t i = 0; i < args.segments.size(); ++i) {
    set_product(problem.projection.segments[i], args.segments[i]);
  }
  problem.norm.weight = args.norm_weight.data;
  problem.norm.weight_dtype = args.norm_weight.dtype;
  problem.norm.rstd = state_data(args.rstd);
  problem.kept_rstd = state_data(args.kept_rstd);
  return problem;
}

RmsNormGemmBackwardProblem make_problem(const RmsNormGemmBackwardArgs& args) {
  const Signature& signature = rms_norm_gemm_backward_signature();
  check_segments(signature, args, kMostRmsNormGemmSegments);
  signature.check(&args);
  RmsNormGemmBackwardProblem problem;
  ProjectionBackwardProblem& projection = problem.projection;
  set_sizes(projection, args);
  for (std::size_t i = 0; i < args.segments.size(); ++i) {
    set_product(projection.segments[i], args.segments[i]);
  }
  projection.dx = matrix_tensor(args.dx);
  projection.accumulate = args.accumulate;
  problem.norm.weight = args.norm_weight.data;
  problem.norm.weight_dtype = args.norm_weight.dtype;
  problem.norm.rstd = state_data(args.rstd);
  if (args.d_norm_weight) problem.d_norm_weight_dtype = args.d_norm_weight->dtype;
  problem.d_norm_weight = data_of(args.d_norm_weight);
  return problem;
}

void rms_norm_gemm_forward(const RmsNormGemmForwardArgs& args, const Context& context) {
  run(rms_norm_gemm_forward_signature(), &args, context);
}

std::size_t rms_norm_gemm_forward_workspace_bytes(const RmsNormGemmForwardArgs& args,
                                                  const DeviceProperties& device,
                                                  bool batch_invariant) {
  return workspace_bytes(rms_norm_gemm_forward_signature(), &args, device, batch_invariant);
}

void rms_norm_gemm_backward(const RmsNormGemmBackwardArgs& args, const Context& context) {
  run(rms_norm_gemm_backward_signature(), &args, context);
}

std::size_t rms_norm_gemm_backward_workspace_bytes(const RmsNormGemmBackwardArgs& args,
                                                   const DeviceProperties& device,
                                                   bool batch_invariant) {
  return workspace_bytes(rms_norm_gemm_backward_signature(), &args, device, batch_invariant);
}

}  // namespace tandem
