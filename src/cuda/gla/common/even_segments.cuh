// Segments of equally many chunks, whatever the direction of the walk.
#pragma once

#include "cuda/gla/common/item.cuh"

namespace tandem::cuda::gla {

/// Keeps `chunks` chunks of the item's tokens, from the `first` on.
__device__ inline void keep_chunks(Item& item, int first, int chunks) {
  const int begin = min(first * kChunk, item.length);
  item.length = min((first + chunks) * kChunk, item.length) - begin;
  item.begin += begin;
}

}  // namespace tandem::cuda::gla
