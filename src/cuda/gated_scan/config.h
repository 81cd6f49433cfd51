// Tiles of the gated scan's kernels.
#pragma once

#include <cstddef>
#include <cstdint>

namespace tandem::cuda {

/// How a CTA's threads lie over a tile. A thread has 8 channels of `tokens` neighbouring tokens.
struct ScanTile {
  int width;            // channels; width / 8 threads side by side
  int threads;          // all; those side by side have the same tokens
  int tokens;           // of a thread
  int stages;           // tiles that are on their way or in use
  bool outputs = true;  // else only the states before some tokens, of x and decays
};

template <class ElementT, class DecayT, bool kAlignedT, ScanTile kTileT>
struct ScanConfig {
  using Element = ElementT;
  using Decay = DecayT;
  static constexpr bool kAligned = kAlignedT;  // 16 bytes at a time, or single elements
  static constexpr ScanTile kTile = kTileT;
  static constexpr int kWidth = kTile.width;
  static constexpr int kThreads = kTile.threads;
  static constexpr int kTokens = kTile.tokens;
  static constexpr int kStages = kTile.stages;
  static constexpr bool kOutputs = kTile.outputs;
  static constexpr int kWarps = kThreads / 32;
  static constexpr int kLanes = kWidth / 8;  // threads side by side
  static constexpr int kWarpTokens = 32 / kLanes * kTokens;
  static constexpr int kTileTokens = kWarps * kWarpTokens;
  static constexpr bool kExact = sizeof(Element) == 4;  // limits of 1e-6, else 3e-4
  static constexpr bool kExactDecay = sizeof(Decay) == 4;

  // 16-byte pieces of a thread, per token.
  static constexpr int kElementPieces = sizeof(Element) / 2;
  static constexpr int kDecayPieces = sizeof(Decay) / 2;

  // why not for single elements: they need more registers, and are slow.
  static constexpr int kFewestBlocks = kAligned ? 65536 / (128 * kThreads) : 1;

  /// CTAs of so much shared memory that an SM holds, with 128 registers per thread.
  static constexpr int blocks_per_sm(std::size_t shared_bytes) {
    const int by_memory = static_cast<int>(228 * 1024 / (shared_bytes + 1024));
    return by_memory < kFewestBlocks ? by_memory : kFewestBlocks;
  }

  static_assert(kLanes <= 32 && 32 % kLanes == 0 && kThreads % 32 == 0);
  static_assert(2 * kWidth <= kThreads);
};

/// 64 channels, 128 bytes of a row: one CTA fills an SM.
template <class Element, class Decay>
using ScanWideConfig = ScanConfig<Element, Decay, true, ScanTile{64, 512, 4, 2}>;

/// A quarter of that, two CTAs: more of them where there are few channels.
template <class Element, class Decay>
using ScanNarrowConfig =
    ScanConfig<Element, Decay, true,
               ScanTile{32, 256, 2, sizeof(Element) + sizeof(Decay) == 4 ? 3 : 2}>;
template <class Element, class Decay>
using ScanSlimConfig = ScanConfig<Element, Decay, true, ScanTile{16, 256, 2, 3}>;

/// Any alignment.
template <class Element, class Decay>
using ScanScalarConfig =
    ScanConfig<Element, Decay, false,
               ScanTile{32, 256, sizeof(Element) + sizeof(Decay) == 4 ? 4 : 2, 2}>;

/// The states that the backward starts from.
template <class Element, class Decay>
using ScanWideStatesConfig = ScanConfig<Element, Decay, true, ScanTile{64, 512, 4, 3, false}>;
template <class Element, class Decay, bool kAligned = true>
using ScanNarrowStatesConfig =
    ScanConfig<Element, Decay, kAligned,
               ScanTile{32, 256, sizeof(Element) + sizeof(Decay) == 4 ? 4 : 2, 3, false}>;

/// Tiles of kStateTokens. Four tensors, and twice the maps.
template <class Element, class Decay>
using ScanWideBackwardConfig = ScanConfig<Element, Decay, true, ScanTile{64, 512, 2, 2}>;
template <class Element, class Decay, bool kAligned = true>
using ScanNarrowBackwardConfig =
    ScanConfig<Element, Decay, kAligned,
               ScanTile{32, 256, 2, sizeof(Element) + sizeof(Decay) == 4 ? 3 : 2}>;

}  // namespace tandem::cuda
