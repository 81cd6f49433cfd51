// What attention's forward kernel receives.
#pragma once

#include <cuda.h>

#include "cuda/attention/forward_config.h"
#include "ops/attention_problem.h"

namespace tandem::cuda::attention {

/// The host fills in:
///   maps   plan_tile of q with 64 rows, of k and v with forward_tile(...).keys rows, for the
///          padded head dims; columns past the tensors' dims read as zero
///   ticket null, or a number that is 0 when the kernel starts: tiles then go to who is free
/// o starts at a multiple of 16 bytes, its strides are multiples of 8 elements and V is one; TQ and
/// TK are below 2^30, B H TQ / 64 below 2^31.
struct AttentionForwardParams {
  AttentionForwardProblem problem;
  CUtensorMap q_map;
  CUtensorMap k_map;
  CUtensorMap v_map;
  unsigned* ticket = nullptr;
  int multiprocessors = 0;
  int heads_together = 1;  // key heads of a section (forward_items.cuh)
};

/// Launches attention_forward_kernel for head dims up to kKeyDim and kValueDim; `name` is the
/// variant's, for errors. Instantiated by forward_instances.cuh.
template <class Element, int kKeyDim, int kValueDim>
void launch_attention_forward(const char* name, const AttentionForwardParams& params, void* stream);
using AttentionForwardLaunch = void (*)(const char* name, const AttentionForwardParams& params,
                                        void* stream);

/// Whether a mask ends what queries see.
inline bool is_bounded(const AttentionMask& mask) {
  return mask.left != AttentionMask::kUnlimited || mask.right != AttentionMask::kUnlimited;
}

}  // namespace tandem::cuda::attention
