// Tiles, roles and budgets of gla_state_kernel.
#pragma once

namespace tandem::cuda::gla {

/// A CTA walks a tile of the state: `kKeyDim` columns of K by `kValueDim` of V, each 64 or 128.
template <class ElementT, int kKeyDimT, int kValueDimT, bool kReverseT = false>
struct StateConfig {
  using Element = ElementT;
  static constexpr int kChunk = 64;
  static constexpr int kKeyDim = kKeyDimT;
  static constexpr int kValueDim = kValueDimT;
  static constexpr bool kReverse = kReverseT;

  // One warpgroup loads, one per 64 value columns keeps the state.
  static constexpr int kStateWarpgroups = kValueDim / 64;
  static constexpr int kThreads = 128 * (1 + kStateWarpgroups);

  static constexpr int kKeyBytes = kChunk * kKeyDim * 2;
  static constexpr int kValueBytes = kChunk * kValueDim * 2;
  static constexpr int kStageBytes = kKeyBytes + kValueBytes;
  static constexpr int kStages = 6;  // 96 to 192 KB under way: this kernel does little else

  // Registers per thread after setmaxnreg; a launch grants 65536 / kThreads, rounded down to 8.
  static constexpr int kLoadRegisters = 56;
  static constexpr int kStateRegisters = kStateWarpgroups == 1 ? 208 : 224;

  static_assert(kKeyDim == 64 || kKeyDim == 128);
  static_assert(kValueDim == 64 || kValueDim == 128);
  static_assert(kLoadRegisters + kStateWarpgroups * kStateRegisters <=
                65536 / kThreads / 8 * 8 * (kThreads / 128));
};

}  // namespace tandem::cuda::gla
