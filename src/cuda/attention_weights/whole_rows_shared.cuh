// The work of a CTA of attention_weights_whole_rows_kernel, and its shared memory.
#pragma once

#include "cuda/attention_weights/forward_params.h"
#include "cuda/attention_weights/whole_rows_config.h"
#include "cuda/parts/ring.cuh"

namespace tandem::cuda::attention_weights {

/// A tile of queries, and the next ones of a CTA. Their number fits into an int: the rows of more
/// would not fit into memory.
struct WholeRowsTile {
  int tiles_per_head;
  int heads;
  int tile;
  int in_head;
  int head;
  int batch;

  __device__ WholeRowsTile(const ForwardParams& params, int tile_)
      : tiles_per_head((static_cast<int>(params.problem.TQ) + kWholeRowsQueries - 1) /
                       kWholeRowsQueries),
        heads(static_cast<int>(params.problem.H)),
        tile(tile_),
        in_head(tile % tiles_per_head),
        head(tile / tiles_per_head % heads),
        batch(tile / tiles_per_head / heads) {}

  __device__ int query() const { return in_head * kWholeRowsQueries; }
  __device__ void advance() {
    ++tile;
    if (++in_head < tiles_per_head) return;
    in_head = 0;
    if (++head < heads) return;
    head = 0;
    ++batch;
  }
};

template <class Config>
struct WholeRowsShared {
  alignas(1024) char k[Config::kWarps][Config::kBlockBytes];
  alignas(1024) char q[Config::kQueryStages][Config::kQueryBytes];
  alignas(1024) char w[Config::kWarps][panel_bytes(Config::kQueries)];
  // What each warp tells the others of each query, in turns. why four more: banks.
  alignas(16) float told[2][Config::kQueries][Config::kWarps + 4];
  Barrier keys;
  Barrier queries[Config::kQueryStages];
};

}  // namespace tandem::cuda::attention_weights
