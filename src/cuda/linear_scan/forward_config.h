// Tiles, roles and budgets of linear_scan_forward_kernel.
#pragma once

#include "cuda/runtime/plan.h"

namespace tandem::cuda::linear_scan {

/// A tile is `kWarpgroups` warpgroups of 64 channels each, times `kTokens` tokens. `kChain`: a tile
/// takes the state before it from the previous tile and scans once; else it publishes its map,
/// scans from 0, and gets the state out of many tiles' maps (carry.cuh). `kAlone`: at most one tile
/// per multiprocessor, with more registers: for gates ready before the state, and more maps at a
/// time.
template <class ElementT, int kWarpgroupsT, int kTokensT, bool kChainT, bool kAloneT = false>
struct ForwardConfig {
  static constexpr bool kKeeps = false;
  using Element = ElementT;
  static constexpr int kWarpgroups = kWarpgroupsT;
  static constexpr int kTokens = kTokensT;
  static constexpr bool kChain = kChainT;
  static constexpr bool kAlone = kAloneT;
  static constexpr int kChannels = 64 * kWarpgroups;
  static constexpr int kThreads = 128 * (1 + kWarpgroups);
  // why two CTAs per SM at 64 channels: one's products run beside the other's scan.
  static constexpr int kCtasPerSm = kWarpgroups == 1 && !kAlone ? 2 : 1;

  // A stage of the ring holds 64 columns of W's and of u's rows; behind the last such stage come
  // those of decays and gates.
  static constexpr int kWeightBytes = kChannels * 128;
  static constexpr int kStageBytes = (kChannels + kTokens) * 128;
  static constexpr int kStages = (kWarpgroups == 1 ? 98304 : 196608) / kStageBytes;
  static constexpr int kTileSlots = 2;  // tiles known ahead

  // Panels of 64 tokens by 64 channels: decays, then gates, which outputs replace.
  static constexpr int kTokenPanels = kTokens / 64;
  static constexpr int kPanelRowsPerStage = kStageBytes / (8192 * kWarpgroups);
  static constexpr int kPanelStages =
      (2 * kTokenPanels + kPanelRowsPerStage - 1) / kPanelRowsPerStage;

  static constexpr int kDecayStages = kTokenPanels / kPanelRowsPerStage;  // hold decays only

  static constexpr int kGroupTiles = kAlone ? 64 : 32;  // tiles of a tile group: carry.cuh

  static constexpr unsigned kTestDelay = 0;  // nanoseconds after a tile's map is published

  // Registers per thread after setmaxnreg; with kAlone all threads have enough without it.
  static constexpr int kLoadRegisters = 40;
  static constexpr int kScanRegisters = kWarpgroups == 1 ? 208 : 232;

  static constexpr int kSharedLimit =
      kWarpgroups == 1 ? kSharedMemoryPerMultiprocessor / 2 - 1024 : kSharedMemoryPerBlock;
  static_assert(kWarpgroups == 1 || kWarpgroups == 2);
  static_assert(kStageBytes % (8192 * kWarpgroups) == 0);
  static_assert(kPanelStages < kStages, "the next tile's first columns come meanwhile");
};

/// Keeps x and states for the backward. why a kernel apart: with this code inside, though it does
/// not run, a chain takes 7 % longer.
template <class Base>
struct Keeping : Base {
  static constexpr bool kKeeps = true;
};

}  // namespace tandem::cuda::linear_scan
