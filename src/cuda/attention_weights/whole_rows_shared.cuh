// Shared memory of attention_weights_whole_rows_kernel.
#pragma once

#include "cuda/attention_weights/unaligned_rows.cuh"
#include "cuda/attention_weights/whole_rows_config.h"
#include "cuda/parts/barrier.cuh"

namespace tandem::cuda::attention_weights {

template <class Config>
struct WholeRowsShared {
  // Weights of a warp: a panel where TMA stores them, else padded rows.
  static constexpr int kWeightsBytes =
      Config::kPieces ? panel_bytes(Config::kQueries) : padded_bytes(Config::kQueries);

  alignas(1024) char k[Config::kWarps][Config::kBlockBytes];
  alignas(1024) char q[Config::kQueryStages][Config::kQueryBytes];
  alignas(1024) char w[Config::kWarps][kWeightsBytes];
  // What each warp tells the others of each query, in turns. why four more: banks.
  alignas(16) float told[2][Config::kQueries][Config::kWarps + 4];
  Barrier keys;
  Barrier queries[Config::kQueryStages];
};

}  // namespace tandem::cuda::attention_weights
