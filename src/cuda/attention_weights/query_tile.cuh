// Tiles of queries, one after the other, as the CTAs of a kernel share them.
#pragma once

#include "ops/attention_weights_problem.h"

namespace tandem::cuda::attention_weights {

/// A tile of kQueries queries of a head. Their number fits into an int: the rows of more would not
/// fit into memory.
template <int kQueries>
struct QueryTile {
  int tiles_per_head;
  int heads;
  int tile;  // of all
  int in_head;
  int head;
  int batch;

  __device__ QueryTile(const AttentionSizes& sizes, int tile_)
      : tiles_per_head((static_cast<int>(sizes.TQ) + kQueries - 1) / kQueries),
        heads(static_cast<int>(sizes.H)),
        tile(tile_),
        in_head(tile % tiles_per_head),
        head(tile / tiles_per_head % heads),
        batch(tile / tiles_per_head / heads) {}

  __device__ int query() const { return in_head * kQueries; }  // its first
  __device__ void advance() {
    if (in_head + 1 == tiles_per_head) return advance_head();
    ++tile;
    ++in_head;
  }
  /// Advances to the first tile of the next head.
  __device__ void advance_head() {
    tile += tiles_per_head - in_head;
    in_head = 0;
    if (++head < heads) return;
    head = 0;
    ++batch;
  }
};

}  // namespace tandem::cuda::attention_weights
