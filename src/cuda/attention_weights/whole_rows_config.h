// Tiles, threads and shared memory of attention_weights_whole_rows_kernel.
#pragma once

#include "cuda/parts/panel.cuh"

namespace tandem::cuda::attention_weights {

constexpr int kWholeRowsQueries = 32;  // of a tile
constexpr int kWholeRowsBox = 16;      // rows of the boxes of k's map: a warp's keys of a product
/// The most keys that a row may have, with so many warps: 64 scores for each thread.
constexpr int whole_rows_keys(int warps) { return 64 * warps; }

/// `kKeyDim` is padded K. `kPieces`: w can be written 16 bytes at a time.
template <class ElementT, int kKeyDimT, int kWarpsT, bool kPiecesT>
struct WholeRowsConfig {
  using Element = ElementT;
  static constexpr int kKeyDim = kKeyDimT;
  static constexpr int kWarps = kWarpsT;
  static constexpr bool kPieces = kPiecesT;
  static constexpr int kThreads = 32 * kWarps;
  static constexpr int kCtas = 16 / kWarps;  // of a multiprocessor: 128 registers for each thread
  static constexpr int kQueries = kWholeRowsQueries;

  static constexpr int kKeyPanels = kKeyDim / kPanelColumns;
  static constexpr int kBlockBytes = kKeyPanels * panel_bytes(64);
  static constexpr int kQueryBytes = kKeyPanels * panel_bytes(kQueries);
  static constexpr int kQueryStages = 2;
};

}  // namespace tandem::cuda::attention_weights
