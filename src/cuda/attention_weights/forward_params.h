// What attention_weights' forward kernel receives.
#pragma once

#include <cuda.h>

#include <algorithm>

#include "cuda/attention_weights/forward_config.h"
#include "cuda/attention_weights/short_rows_config.h"
#include "cuda/attention_weights/whole_rows_config.h"
#include "cuda/runtime/plan.h"
#include "ops/attention_weights_problem.h"

namespace tandem::cuda::attention_weights {

/// The maps are plan_tile's, with ForwardKernel's rows. Columns past their dims read as zero. w
/// starts at a multiple of 16 bytes, its strides and TK are multiples of 8 elements, unless
/// `whole_pieces` says otherwise. Tokens are below 2^29, tiles of 64 queries of all heads below
/// 2^31, none is 0.
struct ForwardParams {
  AttentionWeightsForwardProblem problem;
  CUtensorMap q_map;
  CUtensorMap k_map;
  CUtensorMap w_map{};  // of whole rows alone, in whole pieces
  int strip = 1;        // of strips: tiles that each warpgroup of a CTA takes, one after the other
  int multiprocessors = 0;
  bool whole_pieces = true;  // of w, as said above
};

/// CTAs of a call.
inline std::int64_t count_strips(const AttentionSizes& sizes, int strip) {
  return ceil_div(sizes.TQ, 64 * kForwardGroups * strip) * sizes.B * sizes.H;
}

/// Chooses ForwardParams::strip: the one with which a multiprocessor has the fewest turns, the
/// longer of two. Strips of unequal length, as a mask makes them, are one turn long, so that the
/// device evens them out.
inline int choose_strip(const AttentionWeightsForwardProblem& problem, int multiprocessors) {
  constexpr int kMost = 16;
  if (problem.mask.right >= 0) return 1;
  const auto turns = [&](int strip) {
    return ceil_div(count_strips(problem, strip), multiprocessors) * strip;
  };
  int best = 1;
  for (int strip = 2; strip <= kMost; ++strip) {
    if (turns(strip) <= turns(best)) best = strip;
  }
  return best;
}

/// Equal shares of all tiles of so many queries, at most `most`: fewer where no share then has keys
/// of two heads, and none becomes longer.
inline std::int64_t row_shares(const AttentionSizes& sizes, int queries, std::int64_t most) {
  const std::int64_t tiles_per_head = ceil_div(sizes.TQ, queries);
  const std::int64_t heads = sizes.B * sizes.H, of_head = most / heads;
  const std::int64_t shares = std::min(heads * tiles_per_head, most);
  const bool divides =
      of_head > 0 && ceil_div(tiles_per_head, of_head) <= ceil_div(heads * tiles_per_head, shares);
  return divides ? std::min(shares, heads * of_head) : shares;
}

/// Launches attention_weights_forward_kernel for head dims up to kKeyDim,
/// attention_weights_whole_rows_kernel for rows of up to whole_rows_keys(kWarps) keys, or
/// attention_weights_short_rows_kernel for up to kShortRowsKeys kGroups; `name` is the variant's,
/// for errors. Instantiated by forward_instances.cuh, whole_rows_instances.cuh and
/// short_rows_instances.cuh.
template <class Element, int kKeyDim>
void launch_forward(const char* name, const ForwardParams& params, void* stream);
template <class Element, int kKeyDim, int kWarps>
void launch_whole_rows(const char* name, const ForwardParams& params, void* stream);
template <class Element, int kGroups>
void launch_short_rows(const char* name, const ForwardParams& params, void* stream);

/// How a variant is launched, and for which calls.
struct ForwardKernel {
  void (*launch)(const char* name, const ForwardParams& params, void* stream);
  int query_rows;  // of the boxes of q's map, and of w's
  int key_rows;    // of k's
  std::int64_t most_keys;
  enum { kStrips, kWholeRows, kShortRows } kind;
};

}  // namespace tandem::cuda::attention_weights
