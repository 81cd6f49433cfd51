// Tiles, roles and budgets of gla_forward_kernel.
#pragma once

namespace tandem::cuda {

/// `kKeyDim` and `kValueDim` are the padded widths: 64 or 128.
template <class ElementT, int kKeyDimT, int kValueDimT>
struct ForwardConfig {
  using Element = ElementT;
  static constexpr int kChunk =
      64;  // tokens per tile: one wgmma M, two tokens per lane of the decay warp
  static constexpr int kKeyDim = kKeyDimT;
  static constexpr int kValueDim = kValueDimT;

  // One warpgroup loads, one forms the intra-chunk weights, one per 64 value columns keeps the
  // state.
  static constexpr int kStateGroups = kValueDim / 64;
  static constexpr int kThreads = 128 * (2 + kStateGroups);

  // Inputs of one chunk in shared memory: 128-byte rows per 64 columns.
  static constexpr int kKeyBytes = kChunk * kKeyDim * 2;
  static constexpr int kValueBytes = kChunk * kValueDim * 2;
  static constexpr int kStageBytes = 2 * kKeyBytes + kValueBytes;
  // As many chunks in flight as fit: about 40 KB per SM hide the memory's latency.
  static constexpr int kStages = kStageBytes <= 24576 ? 6 : kStageBytes <= 40960 ? 4 : 3;
  static constexpr int kIntraStages = 2;

  // Registers per thread after setmaxnreg; a launch grants 65536 / kThreads, rounded down to 8.
  static constexpr int kLoadRegisters = 40;
  static constexpr int kIntraRegisters = kStateGroups == 1 ? 128 : 88;
  static constexpr int kStateRegisters = kStateGroups == 1 ? 240 : 192;

  static constexpr int kSharedLimit = 232448;  // bytes per block on sm_90
  static_assert(kKeyDim % 64 == 0 && kKeyDim <= 128 && kValueDim % 64 == 0 && kValueDim <= 128);
  static_assert(kLoadRegisters + kIntraRegisters + kStateGroups * kStateRegisters <=
                65536 / kThreads / 8 * 8 * (kThreads / 128));
};

}  // namespace tandem::cuda
