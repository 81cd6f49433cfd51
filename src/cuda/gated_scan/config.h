// Tiles of the gated scan's kernels.
#pragma once

#include <vector_types.h>

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "cuda/runtime/plan.h"

namespace tandem::cuda::gated_scan {

/// How a CTA's threads lie over a tile.
struct Tile {
  int width;            // channels
  int channels;         // channels of a thread; width / channels threads lie side by side
  int threads;          // in all; threads side by side have the same tokens
  int tokens;           // neighbouring tokens of a thread
  int blocks = 0;       // CTAs that an SM's registers should hold; 0: as many as with 128 a thread
  bool outputs = true;  // else it keeps only the states before some tokens
  bool rows = false;    // TMA brings and takes whole rows
  int stages = 0;       // of a backward: tiles on their way or in use
};

/// What a thread copies at once of so many neighbouring bytes.
template <std::size_t kBytes>
using PieceOf =
    std::conditional_t<kBytes == 4, unsigned, std::conditional_t<kBytes == 8, uint2, uint4>>;

template <class ElementT, class DecayT, bool kAlignedT, Tile kTileT, bool kOfProductT = false>
struct TileConfig {
  using Element = ElementT;
  using Decay = DecayT;
  // x comes as two tensors, as a product leaves it (cuda/parts/two_parts.cuh).
  static constexpr bool kOfProduct = kOfProductT;
  static constexpr bool kAligned = kAlignedT;  // 16 bytes at a time, or single elements
  static constexpr Tile kTile = kTileT;
  static constexpr int kWidth = kTile.width;
  static constexpr int kThreads = kTile.threads;
  static constexpr int kTokens = kTile.tokens;
  static constexpr int kStages = kTile.stages;
  static constexpr bool kOutputs = kTile.outputs;
  static constexpr bool kRows = kTile.rows;
  static constexpr bool kPerSequence = false;
  static constexpr int kWarps = kThreads / 32;
  static constexpr int kChannels = kTile.channels;
  static constexpr int kLanes = kWidth / kChannels;  // threads side by side
  static constexpr int kWarpTokens = 32 / kLanes * kTokens;
  static constexpr int kTileTokens = kWarps * kWarpTokens;
  static constexpr int kLoader = kThreads / 2;  // the thread that loads rows: it has no channel
  static constexpr bool kExact = sizeof(Element) == 4;  // limits of 1e-6, else 3e-4
  static constexpr bool kExactDecay = sizeof(Decay) == 4;

  // What a thread copies at once, and how many such pieces the channels of a token make.
  using Piece = PieceOf<kChannels * sizeof(Element)>;
  static constexpr int kElementPieces = kChannels * sizeof(Element) / sizeof(Piece);
  static constexpr int kDecayPieces = kChannels * sizeof(Decay) / sizeof(Piece);
  static constexpr int kXParts = kOfProduct ? 2 : 1;

  // why only 1 for single elements: they need more registers, and are slow anyway.
  static constexpr int kFewestBlocks = !kAligned          ? 1
                                       : kTile.blocks > 0 ? kTile.blocks
                                                          : 65536 / (128 * kThreads);

  /// Returns how many CTAs with so much shared memory an SM holds, if registers allow it as meant.
  static constexpr int blocks_per_sm(std::size_t shared_bytes) {
    const int by_memory = static_cast<int>(kSharedMemoryPerMultiprocessor / (shared_bytes + 1024));
    return by_memory < kFewestBlocks ? by_memory : kFewestBlocks;
  }

  static_assert(kLanes <= 32 && 32 % kLanes == 0 && kThreads % 32 == 0);
  static_assert(2 * kWidth <= kThreads);
};

/// A tile whose CTA walks one sequence, from that one's first token on: for batch-invariant calls.
template <class Base>
struct PerSequence : Base {
  static constexpr bool kPerSequence = true;
};

/// Takes 64 channels, 128 bytes of a row: one CTA fills an SM.
template <class Element, class Decay, bool kOfProduct = false>
using WideConfig = TileConfig<Element, Decay, true, Tile{64, 8, 512, 4}, kOfProduct>;

/// Puts three CTAs on an SM, each with an eighth of WideConfig's elements in work.
template <class Element, class Decay, bool kAligned = true, bool kOfProduct = false>
using NarrowConfig =
    TileConfig<Element, Decay, kAligned,
               Tile{32, 4, 256, 4, sizeof(Element) + sizeof(Decay) == 4 ? 3 : 2}, kOfProduct>;

/// As many elements as NarrowConfig's, with 128 bytes of a row.
template <class Element, class Decay, bool kOfProduct = false>
using SquareConfig =
    TileConfig<Element, Decay, true,
               Tile{64, 4, 256, 4, sizeof(Element) + sizeof(Decay) == 4 ? 3 : 2, true, true},
               kOfProduct>;

/// Half of WideConfig's elements, with two CTAs on an SM.
template <class Element, class Decay>
using TallConfig = TileConfig<Element, Decay, true, Tile{64, 4, 256, 8, 2, true, true}>;

/// Read x as a product leaves it.
template <class Element, class Decay, bool kAligned = true>
using OfProductConfig = NarrowConfig<Element, Decay, kAligned, true>;
template <class Element, class Decay>
using OfProductSquareConfig = SquareConfig<Element, Decay, true>;
template <class Element, class Decay>
using OfProductWideConfig = WideConfig<Element, Decay, true>;

/// Makes more CTAs where channels are few.
template <class Element, class Decay>
using SlimConfig = TileConfig<Element, Decay, true, Tile{16, 4, 256, 4, 3}>;

/// Keeps the states that the backward starts from, without outputs.
template <class Element, class Decay, bool kAligned = true>
using NarrowStatesConfig =
    TileConfig<Element, Decay, kAligned,
               Tile{32, 8, 256, sizeof(Element) + sizeof(Decay) == 4 ? 4 : 2, 0, false}>;

/// A backward with tiles of kStateTokens tokens, which TMA copies by rows.
template <class Element, class Decay>
using RowsBackwardConfig = TileConfig<Element, Decay, true, Tile{64, 2, 512, 8, 1, true, true, 2}>;
template <class Element, class Decay, bool kAligned = true>
using NarrowBackwardConfig =
    TileConfig<Element, Decay, kAligned,
               Tile{32, 8, 256, 2, 1, true, false, sizeof(Element) + sizeof(Decay) == 4 ? 3 : 2}>;

}  // namespace tandem::cuda::gated_scan
