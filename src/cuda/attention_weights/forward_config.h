// Tiles, stages, threads and registers of attention_weights_forward_kernel.
#pragma once

#include "cuda/parts/panel.cuh"

namespace tandem::cuda::attention_weights {

constexpr int kForwardGroups = 4;  // warpgroups of a CTA that multiply
constexpr int kForwardKeys = 128;  // of a block, of which each half is a product

/// Keys of a stage: rows of the boxes of k's map.
constexpr int forward_stage_keys(int key_dim) { return key_dim <= 64 ? kForwardKeys : 64; }

/// `kKeyDim` is padded K. A tile is the 64 queries of a warpgroup.
template <class ElementT, int kKeyDimT>
struct ForwardConfig {
  using Element = ElementT;
  static constexpr int kKeyDim = kKeyDimT;
  static constexpr int kGroups = kForwardGroups;
  static constexpr int kKeys = kForwardKeys;
  static constexpr int kStageKeys = forward_stage_keys(kKeyDim);

  static constexpr int kKeyPanels = kKeyDim / kPanelColumns;
  static constexpr int kQueryBytes = kKeyPanels * panel_bytes(64);
  static constexpr int kKeyBytes = kKeyPanels * panel_bytes(kStageKeys);
  static constexpr int kStages = kKeyDim <= 128 ? 4 : 2;      // of keys
  static constexpr int kQueryStages = kKeyDim <= 64 ? 2 : 1;  // each group's tiles
  // Halves of a block's weights that leave together: rows in pieces of 256 bytes where they fit.
  static constexpr int kStoredHalves = kKeyDim <= 128 ? 2 : 1;

  // A warpgroup that loads, then those that multiply; registers per thread after setmaxnreg.
  static constexpr int kThreads = 128 * (1 + kGroups);
  static constexpr int kLoadRegisters = 24;
  static constexpr int kRowRegisters = 112;
};

}  // namespace tandem::cuda::attention_weights
