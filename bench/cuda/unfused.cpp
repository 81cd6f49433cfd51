// The table of the unfused baselines. Compiled in a build without CUDA too.
#include "bench/cuda/unfused.h"

#include <utility>

#include "ops/attention.h"
#include "ops/attention_weights.h"
#include "ops/gated_output.h"
#include "ops/gated_scan.h"
#include "ops/gemm_swiglu.h"
#include "ops/gla.h"
#include "ops/linear_scan.h"
#include "ops/projection.h"
#include "ops/rms_norm_gemm.h"
#include "tandem/error.h"

namespace tandem::bench {
namespace {

#ifdef TANDEM_CUDA
constexpr bool kWithCuda = true;
#else
constexpr bool kWithCuda = false;
#endif

/// Calls body with the checked problem of each call.
template <class... Args, class Body>
auto with_problems(CallArguments args, const Body& body) {
  if (!kWithCuda) throw Unsupported("cuda: " + cuda_unavailable_reason());
  return [&]<std::size_t... i>(std::index_sequence<i...>) {
    return body(make_problem(*static_cast<const Args*>(args[i].get()))...);
  }
  (std::index_sequence_for<Args...>{});
}

template <auto run, auto workspace_bytes, class... Args>
Baseline baseline(const char* provider, const char* variant, std::vector<const Signature*> calls,
                  std::vector<std::string> forgoes = {}) {
  return {provider,
          variant,
          std::move(calls),
          [](CallArguments args, const Context& context) {
            with_problems<Args...>(args, [&](const auto&... problems) {
              if constexpr (kWithCuda) run(problems..., context);
            });
          },
          [](CallArguments args) {
            return with_problems<Args...>(args, [](const auto&... problems) -> std::size_t {
              if constexpr (kWithCuda) return workspace_bytes(problems...);
              return 0;
            });
          },
          std::move(forgoes)};
}

constexpr const char* kComposed = "composed.gemm_gated_scan";

}  // namespace

const std::vector<Baseline>& baselines() {
  static const std::vector<std::string> gate_kept = {"gate_slope", "up_slope"};
  static const std::vector<Baseline> all = {
      baseline<unfused_gla, unfused_gla_workspace_bytes, GlaForwardArgs>(
          "unfused", "unfused.cublaslt", {&gla_forward_signature()}, {"saved_states"}),
      baseline<unfused_gated_scan, unfused_gated_scan_workspace_bytes, GatedScanForwardArgs>(
          "unfused", "unfused.scan_gate", {&gated_scan_forward_signature()}),
      baseline<unfused_linear_scan, unfused_linear_scan_workspace_bytes, LinearScanForwardArgs>(
          "unfused", "unfused.gemm_scan_gate", {&linear_scan_forward_signature()}, {"x", "states"}),
      baseline<composed_linear_scan, composed_linear_scan_workspace_bytes, LinearScanForwardArgs>(
          "composed", kComposed, {&linear_scan_forward_signature()}, {"states"}),
      baseline<composed_linear_scan_backward, composed_linear_scan_backward_workspace_bytes,
               LinearScanBackwardArgs>("composed", kComposed, {&linear_scan_backward_signature()}),
      baseline<composed_linear_scan_both, composed_linear_scan_both_workspace_bytes,
               LinearScanForwardArgs, LinearScanBackwardArgs>(
          "composed", kComposed,
          {&linear_scan_forward_signature(), &linear_scan_backward_signature()}, {"states"}),
      baseline<unfused_projection, unfused_projection_workspace_bytes, ProjectionForwardArgs>(
          "unfused", "unfused.cublaslt", {&projection_forward_signature()}),
      baseline<unfused_projection_backward, unfused_projection_backward_workspace_bytes,
               ProjectionBackwardArgs>("unfused", "unfused.cublaslt",
                                       {&projection_backward_signature()}),
      baseline<unfused_projection_both, unfused_projection_both_workspace_bytes,
               ProjectionForwardArgs, ProjectionBackwardArgs>(
          "unfused", "unfused.cublaslt",
          {&projection_forward_signature(), &projection_backward_signature()}),
      baseline<unfused_rms_norm_gemm, unfused_rms_norm_gemm_workspace_bytes,
               RmsNormGemmForwardArgs>("unfused", "unfused.norm_cublaslt",
                                       {&rms_norm_gemm_forward_signature()}),
      baseline<unfused_rms_norm_gemm_backward, unfused_rms_norm_gemm_backward_workspace_bytes,
               RmsNormGemmBackwardArgs>("unfused", "unfused.norm_cublaslt",
                                        {&rms_norm_gemm_backward_signature()}),
      baseline<unfused_rms_norm_gemm_both, unfused_rms_norm_gemm_both_workspace_bytes,
               RmsNormGemmForwardArgs, RmsNormGemmBackwardArgs>(
          "unfused", "unfused.norm_cublaslt",
          {&rms_norm_gemm_forward_signature(), &rms_norm_gemm_backward_signature()}),
      baseline<unfused_gemm_swiglu, unfused_gemm_swiglu_workspace_bytes, GemmSwigluForwardArgs>(
          "unfused", "unfused.cublaslt", {&gemm_swiglu_forward_signature()}, gate_kept),
      baseline<unfused_gemm_swiglu_backward, unfused_gemm_swiglu_backward_workspace_bytes,
               GemmSwigluBackwardArgs>("unfused", "unfused.cublaslt",
                                       {&gemm_swiglu_backward_signature()}),
      baseline<unfused_gemm_swiglu_both, unfused_gemm_swiglu_both_workspace_bytes,
               GemmSwigluForwardArgs, GemmSwigluBackwardArgs>(
          "unfused", "unfused.cublaslt",
          {&gemm_swiglu_forward_signature(), &gemm_swiglu_backward_signature()}, gate_kept),
      baseline<unfused_gated_output, unfused_gated_output_workspace_bytes, GatedOutputForwardArgs>(
          "unfused", "unfused.gate_cublaslt_norm", {&gated_output_forward_signature()}),
      baseline<unfused_gated_output_backward, unfused_gated_output_backward_workspace_bytes,
               GatedOutputBackwardArgs>("unfused", "unfused.gate_cublaslt_norm",
                                        {&gated_output_backward_signature()}),
      baseline<unfused_gated_output_both, unfused_gated_output_both_workspace_bytes,
               GatedOutputForwardArgs, GatedOutputBackwardArgs>(
          "unfused", "unfused.gate_cublaslt_norm",
          {&gated_output_forward_signature(), &gated_output_backward_signature()}),
      baseline<unfused_attention, unfused_attention_workspace_bytes, AttentionForwardArgs>(
          "unfused", "unfused.cublaslt_softmax", {&attention_forward_signature()}),
      baseline<unfused_attention_weights, unfused_attention_weights_workspace_bytes,
               AttentionWeightsForwardArgs>("unfused", "unfused.cublaslt_softmax",
                                            {&attention_weights_forward_signature()}),
      baseline<unfused_attention_weights_backward,
               unfused_attention_weights_backward_workspace_bytes, AttentionWeightsBackwardArgs>(
          "unfused", "unfused.softmax_gradient_cublaslt",
          {&attention_weights_backward_signature()})};
  return all;
}

}  // namespace tandem::bench
