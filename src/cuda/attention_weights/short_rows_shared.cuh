// Shared memory of attention_weights_short_rows_kernel.
#pragma once

#include "cuda/attention_weights/short_rows_config.h"
#include "cuda/attention_weights/unaligned_rows.cuh"
#include "cuda/parts/barrier.cuh"

namespace tandem::cuda::attention_weights {

template <class Config>
struct ShortRowsShared {
  // Of this head and the next one, in turns.
  alignas(1024) char k[2][Config::kGroups][panel_bytes(kShortRowsKeys)];
  alignas(1024) char q[Config::kQueryStages][panel_bytes(kShortRowsQueries)];
  // What each warpgroup tells the others of each row, in turns.
  float told[2][Config::kGroups][kShortRowsQueries];
  Barrier queries[Config::kQueryStages];
  // 64 weights of each of a warp's 16 rows, on their way to rows that are not whole pieces.
  alignas(
      16) char w[Config::kPieces ? 1 : 4 * Config::kGroups][Config::kPieces ? 1 : padded_bytes(16)];
};

}  // namespace tandem::cuda::attention_weights
