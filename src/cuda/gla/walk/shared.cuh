// What the roles of gla_walk_kernel share: shared memory, and the way through the items.
#pragma once

#include <type_traits>

#include "cuda/gla/common/decay_stream.cuh"
#include "cuda/gla/common/remembered.cuh"
#include "cuda/gla/walk/config.h"
#include "cuda/gla/walk/params.h"
#include "cuda/parts/decay.cuh"
#include "cuda/parts/panel.cuh"
#include "cuda/parts/ring.cuh"

namespace tandem::cuda::gla {

/// Row sums on their way to the gradient by the decays (row_sums.cuh), in turn with p.
template <class Config>
struct RowSumShared {
  /// Sums per token: one of all of o; in a reverse walk one of what comes from inside the chunk,
  /// one of the rest.
  static constexpr int kKinds = Config::kReverse ? 2 : 1;
  /// Shares that make up each sum: one per warp of a warpgroup, or one per 4 lanes of each warp.
  static constexpr int kShares = Config::kRowSumsByLane ? 32 : 4;
  using Rows = float[kKinds][kShares][Config::kChunk];

  /// Column of a token's sum in a share's row, such that 8 lanes write 8 shares without bank
  /// conflicts.
  static __device__ int column(int share, int token) { return token ^ share % 8 * 8; }

  struct Place {
    std::int64_t row;  // of the chunk's first token in RowSumParams::rows
    int tokens;
  };

  Rows rows[Config::kStateWarpgroups][Config::kIntraStages];
  // Two per slot, used in turn: one thread writes the next while others still read the last.
  Place places[Config::kIntraStages][2];
};
struct NoRowSums {};

/// What dv beside dk takes (key_value.cuh).
template <class Config>
struct ValueShared {
  using Panel = char[panel_bytes(Config::kChunk)];

  alignas(1024) Panel p;                                                      // [C,C]
  alignas(1024) Panel state[Config::kStateWarpgroups][Config::kKeyDim / 64];  // St rounded
  alignas(1024) Panel o;                                                      // [C,64]
  Ring<1> ring;  // of `state`, which the state role fills
};
struct NoValue {};

/// Panels of a state on its way to memory.
template <class Config>
struct SavedShared {
  alignas(1024) char panels[Config::kStateWarpgroups][Config::kSavedPanels]
                           [panel_bytes(Config::kChunk)];
};
struct NoSaved {};

/// What a split walk reads before the walk itself (segments.cuh), in chunks.
struct SegmentEntry {
  int told = 0;  // to tell later segments, from its own last one back; 0: it tells nothing
  bool told_whole = true;  // else the state before those is forgotten
  int before = 0;          // before the segment, for its own state; 0: it is told
  bool before_whole = false;

  __device__ int chunks() const { return told + before; }
  /// The chunk that is read as the i-th.
  template <class Config>
  __device__ int chunk(const Item& item, int i) const {
    return (i < told ? item.chunks<Config>() : told) - 1 - i;
  }
};

/// What a split walk knows of its one item beside it.
template <class Config>
struct SegmentShared {
  DecaySumsShared<Config::kThreads, 2> decay_sums;
  SegmentEntry entry;
  Barrier read;  // by the state role, what the entry says
};
struct NoSegment {};

template <class Config>
struct WalkShared {
  struct Stage {
    alignas(1024) char q[Config::kKeyBytes];  // [C,K]
    alignas(1024) char k[Config::kKeyBytes];  // [C,K]
    // v [C,V] and, where Config::kRowSums, x of RowSumParams behind it.
    alignas(1024) char v[Config::kValueBytes + Config::kFactorBytes];

    __device__ char* x() { return v + Config::kValueBytes; }
    __device__ const char* x() const { return v + Config::kValueBytes; }
  };
  using ItemRing = Ring<Config::kItemSlots>;
  using InputRing = Ring<Config::kStages>;
  using IntraRing = Ring<Config::kIntraStages>;

  Stage stages[Config::kStages];
  alignas(1024) char p[Config::kIntraStages][Config::kHeads][panel_bytes(Config::kChunk)];  // [C,C]
  // [C,64], in turn
  alignas(
      1024) char o[Config::kStateWarpgroups][Config::kOutputPanels][panel_bytes(Config::kChunk)];
  [[no_unique_address]] std::conditional_t<Config::kWithValue, ValueShared<Config>, NoValue> value;
  [[no_unique_address]] std::conditional_t<(Config::kSavedPanels > 0), SavedShared<Config>, NoSaved>
      saved;
  ChunkDecay<Config::kChunk> decay[Config::kStages][Config::kHeads];
  typename DecayStream<Config::kReverse>::Buffer log_decays[Config::kHeads];
  Item items[Config::kItemSlots];
  // Of a slot's turn. why here: roles have no register for it through all of an item.
  std::uint32_t item_parity[Config::kItemSlots];
  ItemRing item_ring;
  InputRing input;
  IntraRing intra;
  [[no_unique_address]] std::conditional_t<Config::kSplit, SegmentShared<Config>, NoSegment>
      segment;
  [[no_unique_address]] std::conditional_t<Config::kRowSums, RowSumShared<Config>, NoRowSums>
      row_sums;

  /// The factors of a stage's chunk for one state warpgroup, and the weights of a slot.
  __device__ const ChunkDecay<Config::kChunk>& decay_of(int stage, int warpgroup) const {
    return decay[stage][Config::kHeads > 1 ? warpgroup : 0];
  }
  __device__ const char* weights_of(int slot, int warpgroup) const {
    return p[slot][Config::kHeads > 1 ? warpgroup : 0];
  }
};

/// WalkSchedule::first_chunks. why none of heads together: the load role has no registers for it.
template <class Config>
__device__ int first_chunks(const WalkParams& params) {
  return Config::kSplit && Config::kHeads == 1 ? params.schedule.first_chunks : 0;
}

/// Whether the walk makes row sums.
template <class Config>
__device__ bool wants_row_sums(const WalkParams& params) {
  return Config::kRowSums && params.row_sums.rows != nullptr;
}

/// Whether the walk reads x of RowSumParams.
template <class Config>
__device__ bool wants_x(const WalkParams& params) {
  return Config::kWithValue || wants_row_sums<Config>(params);
}

/// A role's way through the items of its CTA; every thread of the role calls both.
template <class Config>
class ItemReader {
 public:
  explicit __device__ ItemReader(WalkShared<Config>& shared) : shared_(shared) {}

  /// Returns the item whose turn it is, null when there are no more. Valid until advance(), so that
  /// a role without registers to spare can read it where it lies.
  __device__ const Item* current() const {
    shared_.item_ring.wait_full(at_);
    const Item* item = &shared_.items[at_.stage];
    return item->batch != Item::kNone ? item : nullptr;
  }
  __device__ void advance() {
    at_.parity = shared_.item_parity[at_.stage];
    shared_.item_ring.empty[at_.stage].arrive();
    at_.advance();
  }

 private:
  WalkShared<Config>& shared_;
  typename WalkShared<Config>::ItemRing::Position at_;
};

}  // namespace tandem::cuda::gla
