// The unfused baselines: an op as it would be without Tandem, by cuBLASLt products and separate
// element-wise kernels on a CUDA device. They take a call's checked problem, of dense batches in
// bf16 or fp16, and throw Unsupported, saying why, for any other.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "ops/attention_problem.h"
#include "ops/attention_weights_problem.h"
#include "ops/gated_output_problem.h"
#include "ops/gated_scan_problem.h"
#include "ops/gemm_swiglu_problem.h"
#include "ops/gla_problem.h"
#include "ops/linear_scan_problem.h"
#include "ops/projection_problem.h"
#include "ops/rms_norm_gemm_problem.h"
#include "tandem/context.h"
#include "tandem/error.h"
#include "tandem/tensor.h"

namespace tandem {
class Signature;
}

namespace tandem::bench {

// Each call enqueues its kernels on the context's stream, and can be captured in a CUDA graph after
// one direct call of its shape on the device, which loads the kernels and chooses how cuBLASLt runs
// the products (batched_matmul.h).

/// gla's forward as a careful PyTorch user would write it. K and V must be multiples of 8.
void unfused_gla(const GlaForwardProblem& problem, const Context& context);
std::size_t unfused_gla_workspace_bytes(const GlaForwardProblem& problem);

/// The scan one token after another and, if there is one, the gate, a kernel each.
void unfused_gated_scan(const GatedScanForwardProblem& problem, const Context& context);
std::size_t unfused_gated_scan_workspace_bytes(const GatedScanForwardProblem& problem);

/// The product x = u W^T, the scan and the gate, a kernel each. u and weight must have no gaps, and
/// begin at multiples of 256 bytes.
void unfused_linear_scan(const LinearScanForwardProblem& problem, const Context& context);
std::size_t unfused_linear_scan_workspace_bytes(const LinearScanForwardProblem& problem);

/// The products, and Tandem's gated_scan: forward, backward, and the two in turn. u, weight, du and
/// d_weight as above.
void composed_linear_scan(const LinearScanForwardProblem& problem, const Context& context);
std::size_t composed_linear_scan_workspace_bytes(const LinearScanForwardProblem& problem);
void composed_linear_scan_backward(const LinearScanBackwardProblem& problem,
                                   const Context& context);
std::size_t composed_linear_scan_backward_workspace_bytes(const LinearScanBackwardProblem& problem);
void composed_linear_scan_both(const LinearScanForwardProblem& forward,
                               const LinearScanBackwardProblem& backward, const Context& context);
std::size_t composed_linear_scan_both_workspace_bytes(const LinearScanForwardProblem& forward,
                                                      const LinearScanBackwardProblem& backward);

/// Per segment a product and, where anything follows it, an element-wise kernel: forward, backward,
/// and the two in turn. d and columns must be multiples of 8, rows begin at multiples of 16 bytes.
void unfused_projection(const ProjectionForwardProblem& problem, const Context& context);
std::size_t unfused_projection_workspace_bytes(const ProjectionForwardProblem& problem);
void unfused_projection_backward(const ProjectionBackwardProblem& problem, const Context& context);
std::size_t unfused_projection_backward_workspace_bytes(const ProjectionBackwardProblem& problem);
void unfused_projection_both(const ProjectionForwardProblem& forward,
                             const ProjectionBackwardProblem& backward, const Context& context);
std::size_t unfused_projection_both_workspace_bytes(const ProjectionForwardProblem& forward,
                                                    const ProjectionBackwardProblem& backward);

/// The norm, the products of projection's baseline, one where the segments' weights and outputs lie
/// in one matrix each, and the norm's gradient: forward, backward, and the two in turn. As above,
/// and d at most 8192.
void unfused_rms_norm_gemm(const RmsNormGemmForwardProblem& problem, const Context& context);
std::size_t unfused_rms_norm_gemm_workspace_bytes(const RmsNormGemmForwardProblem& problem);
void unfused_rms_norm_gemm_backward(const RmsNormGemmBackwardProblem& problem,
                                    const Context& context);
std::size_t unfused_rms_norm_gemm_backward_workspace_bytes(
    const RmsNormGemmBackwardProblem& problem);
void unfused_rms_norm_gemm_both(const RmsNormGemmForwardProblem& forward,
                                const RmsNormGemmBackwardProblem& backward, const Context& context);
std::size_t unfused_rms_norm_gemm_both_workspace_bytes(const RmsNormGemmForwardProblem& forward,
                                                       const RmsNormGemmBackwardProblem& backward);

/// The products of both weights, one where they are rows of one matrix, and an element-wise kernel;
/// of a norm a kernel in front, and two behind: forward, backward, and the two in turn. d and F
/// must be multiples of 8, rows begin at multiples of 16 bytes. Backward it takes the slopes, after
/// its own forward the products, which it keeps in their stead.
void unfused_gemm_swiglu(const GemmSwigluForwardProblem& problem, const Context& context);
std::size_t unfused_gemm_swiglu_workspace_bytes(const GemmSwigluForwardProblem& problem);
void unfused_gemm_swiglu_backward(const GemmSwigluBackwardProblem& problem, const Context& context);
std::size_t unfused_gemm_swiglu_backward_workspace_bytes(const GemmSwigluBackwardProblem& problem);
void unfused_gemm_swiglu_both(const GemmSwigluForwardProblem& forward,
                              const GemmSwigluBackwardProblem& backward, const Context& context);
std::size_t unfused_gemm_swiglu_both_workspace_bytes(const GemmSwigluForwardProblem& forward,
                                                     const GemmSwigluBackwardProblem& backward);

/// The gate, with the norm of groups, as a kernel in front of the product, the bias its epilogue
/// and the residual its C, and the norm behind it: forward, backward, and the two in turn. d_in, d
/// and group_width must be multiples of 8, rows begin at multiples of 16 bytes; group_width and,
/// with a norm, d are at most 8192.
void unfused_gated_output(const GatedOutputForwardProblem& problem, const Context& context);
std::size_t unfused_gated_output_workspace_bytes(const GatedOutputForwardProblem& problem);
void unfused_gated_output_backward(const GatedOutputBackwardProblem& problem,
                                   const Context& context);
std::size_t unfused_gated_output_backward_workspace_bytes(
    const GatedOutputBackwardProblem& problem);
void unfused_gated_output_both(const GatedOutputForwardProblem& forward,
                               const GatedOutputBackwardProblem& backward, const Context& context);
std::size_t unfused_gated_output_both_workspace_bytes(const GatedOutputForwardProblem& forward,
                                                      const GatedOutputBackwardProblem& backward);

/// The scores as a product, their softmax, and the product with v. K, V and TK must be multiples of
/// 8, rows begin at multiples of 16 bytes; no cu_seqlens or lengths_k.
void unfused_attention(const AttentionForwardProblem& problem, const Context& context);
std::size_t unfused_attention_workspace_bytes(const AttentionForwardProblem& problem);

/// The first two of these, and backward the softmax's gradient and two products, of as many heads
/// of k as of q. w and d_w must have no gaps.
void unfused_attention_weights(const AttentionWeightsForwardProblem& problem,
                               const Context& context);
std::size_t unfused_attention_weights_workspace_bytes(
    const AttentionWeightsForwardProblem& problem);
void unfused_attention_weights_backward(const AttentionWeightsBackwardProblem& problem,
                                        const Context& context);
std::size_t unfused_attention_weights_backward_workspace_bytes(
    const AttentionWeightsBackwardProblem& problem);

/// The arguments of a baseline's calls, each the public struct of its table.
using CallArguments = std::span<const std::shared_ptr<void>>;

/// A baseline for tools, which call it with the arguments of the calls that it stands for. Without
/// CUDA its functions throw Unsupported.
struct Baseline {
  const char* provider;                 // as in results files: "unfused"
  const char* variant;                  // as in results files: "unfused.cublaslt"
  std::vector<const Signature*> calls;  // that it makes, in turn
  void (*run)(CallArguments args, const Context& context);
  std::size_t (*workspace_bytes)(CallArguments args);
  std::vector<std::string> forgoes =
      {};  // outputs for a backward that it has no use for, nor reads
};

const std::vector<Baseline>& baselines();

/// Refuses what no baseline takes.
template <class Problem>
void check_baseline(const Problem& problem) {
  if (problem.device.type != DeviceType::kCuda) {
    throw Unsupported("the unfused baseline is for CUDA devices, not for the CPU");
  }
  if constexpr (requires { problem.cu_seqlens; }) {
    if (problem.cu_seqlens != nullptr) {
      throw Unsupported("the unfused baseline is for dense batches, not for cu_seqlens");
    }
  }
  if (problem.dtype != DType::kBFloat16 && problem.dtype != DType::kFloat16) {
    throw Unsupported("the unfused baseline is for bf16 and fp16, not for " +
                      to_string(problem.dtype));
  }
}

}  // namespace tandem::bench
