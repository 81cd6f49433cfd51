// Tiles, threads and shared memory of attention_weights_short_rows_kernel.
#pragma once

#include "cuda/parts/panel.cuh"

namespace tandem::cuda::attention_weights {

constexpr int kShortRowsQueries = 64;  // of a tile
constexpr int kShortRowsKeys = 128;    // of a warpgroup

/// Rows of up to 128 kGroups keys, K up to 64. `kPieces`: w can be written 16 bytes at a time.
template <class ElementT, int kGroupsT, bool kPiecesT>
struct ShortRowsConfig {
  using Element = ElementT;
  static constexpr int kGroups = kGroupsT;
  static constexpr bool kPieces = kPiecesT;
  static constexpr int kThreads = 128 * kGroups;
  // Of a multiprocessor. 128 registers for each thread allow four warpgroups.
  static constexpr int kCtas = kGroups == 1 && !kPieces ? 3 : 4 / kGroups;
  static constexpr int kQueryStages = 2;
};

}  // namespace tandem::cuda::attention_weights
