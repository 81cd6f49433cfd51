// Tiles, roles and budgets of attention_forward_kernel.
#pragma once

#include "cuda/runtime/plan.h"

namespace tandem::cuda::attention {

/// Queries of a tile and keys of a block.
struct ForwardTile {
  int queries;
  int keys;
};

/// The tile for head dims of K and V, as instantiated. The host encodes its maps with it.
constexpr ForwardTile forward_tile(int key_dim, int value_dim) {
  const int dim = key_dim > value_dim ? key_dim : value_dim;
  if (dim <= 64) return {192, 128};
  if (value_dim <= 128) return {128, 128};
  if (dim <= 192) return {128, 112};
  return {128, 80};
}

/// `kKeyDim` and `kValueDim` are padded K and V. Every 64 queries of a tile have a warpgroup.
template <class ElementT, int kKeyDimT, int kValueDimT, int kQueriesT, int kKeysT, int kStagesT = 2,
          bool kTurnsT = (kKeyDimT <= 128)>
struct ForwardConfig {
  using Element = ElementT;
  static constexpr int kKeyDim = kKeyDimT;
  static constexpr int kValueDim = kValueDimT;
  static constexpr int kQueries = kQueriesT;
  static constexpr int kKeys = kKeysT;
  static constexpr int kGroups = kQueries / 64;  // warpgroups that multiply
  static constexpr bool kTurns = kTurnsT;        // they take turns at the tensor cores
  static_assert(kGroups == 2 || kGroups == 3);
  static_assert(kKeyDim % 32 == 0 && kValueDim % 32 == 0 && kKeys % 16 == 0);

  static constexpr int kThreads = 128 * (1 + kGroups);
  static constexpr int kLoadRegisters = kGroups == 2 ? 40 : 32;
  static constexpr int kRowRegisters = kGroups == 2 ? 232 : 160;

  // Tiles in shared memory are whole panels of 64 columns.
  static constexpr int kKeyPanels = (kKeyDim + 63) / 64;
  static constexpr int kValuePanels = (kValueDim + 63) / 64;
  static constexpr int kQueryBytes = kKeyPanels * 64 * 128;  // of a warpgroup
  static constexpr int kKeyBytes = kKeyPanels * kKeys * 128;
  static constexpr int kValueBytes = kValuePanels * kKeys * 128;
  static constexpr int kStages = kStagesT;  // of keys, and of values
  static constexpr int kItemSlots = 4;      // why kept until a tile is done: registers are few
};

// Named barriers: of each warpgroup, and of its turn.
constexpr int kGroupBarrier = 1;
constexpr int kTurnBarrier = 4;

}  // namespace tandem::cuda::attention
