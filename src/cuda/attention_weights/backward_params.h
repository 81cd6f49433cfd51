// What the kernels of attention_weights' backward receive.
#pragma once

#include <cuda.h>

#include "cuda/attention_weights/backward_config.h"
#include "ops/attention_weights_problem.h"

namespace tandem::cuda::attention_weights {

/// The maps are plan_tile's, with 64 rows. Gradients start at multiples of 16 bytes, their strides
/// and K are multiples of 8 elements. Tokens are below 2^29, tiles of 64 of all heads below 2^31.
struct BackwardParams {
  AttentionWeightsBackwardProblem problem;
  CUtensorMap q_map;
  CUtensorMap k_map;
  CUtensorMap w_map;
  CUtensorMap d_w_map;
  float* row_means = nullptr;  // [B,H,padded_queries(TQ)] in the workspace: sum_j w_ij d_w_ij
  int multiprocessors = 0;
};

/// TQ filled up to whole tiles of the kernel that writes row_means.
constexpr std::int64_t padded_queries(std::int64_t queries) { return ceil_div(queries, 128) * 128; }

/// Launches the backward's kernels for head dims up to kKeyDim; `name` is the variant's, for
/// errors. Instantiated by backward_instances.cuh.
template <class Element, int kKeyDim>
void launch_backward(const char* name, const BackwardParams& params, void* stream);
using BackwardLaunch = void (*)(const char* name, const BackwardParams& params, void* stream);

}  // namespace tandem::cuda::attention_weights
