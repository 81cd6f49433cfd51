// What passes through the ring of the GEMM main loop (gemm/loop.cuh): the steps of a tile, their
// stages in shared memory, and the warps that load them.
#pragma once

#include <cute/arch/cluster_sm90.hpp>

#include "cuda/gemm/config.h"
#include "cuda/gemm/operands.h"
#include "cuda/gemm/schedule.cuh"
#include "cuda/parts/ring.cuh"
#include "cuda/parts/stream_order.cuh"
#include "cuda/parts/tma.cuh"
#include "cuda/parts/wgmma.cuh"

namespace tandem::cuda::gemm {

template <class Config>
constexpr Major kMajorA = k_major_a(Config::kLayout) ? Major::K : Major::MN;
template <class Config>
constexpr Major kMajorB = k_major_b(Config::kLayout) ? Major::K : Major::MN;

template <class Config>
struct Shared {
  struct Stage {
    char a[Config::kPanelsA * kPanelBytes];
    char b[Config::kPanels * kPanelBytes];
  };
  alignas(1024) Stage stages[Config::kStages];
  alignas(1024) char stores[2][Config::kStorePanels * kPanelBytes];
  Ring<Config::kStages> ring;
};
/// With a gate.
template <class Config>
requires(Config::kGated) struct Shared<Config> {
  struct Stage {
    char b[Config::kPanels * kPanelBytes];
  };
  alignas(1024) Stage stages[Config::kStages];
  alignas(1024) char rows[Config::kStagesA][Config::kPanelsA * kPanelBytes];
  alignas(1024) char stores[2][Config::kStorePanels * kPanelBytes];
  Ring<Config::kStages> ring;
  Ring<Config::kStagesA> rows_ring;
};

/// The ring that an operand passes through, how many stages it has, and where the operand lies in
/// one.
template <class Config, bool kIsA>
constexpr int kStagesOf = kIsA&& Config::kGated ? Config::kStagesA : Config::kStages;
template <bool kIsA, class Config>
__device__ auto& ring_of(Shared<Config>& shared) {
  if constexpr (kIsA && Config::kGated) {
    return shared.rows_ring;
  } else {
    return shared.ring;
  }
}
template <bool kIsA, class Config>
__device__ char* place_in(Shared<Config>& shared, int stage) {
  if constexpr (!kIsA) {
    return shared.stages[stage].b;
  } else if constexpr (Config::kGated) {
    return shared.rows[stage];
  } else {
    return shared.stages[stage].a;
  }
}

/// The steps of 64 that a tile contracts in a term.
struct Steps {
  int begin = 0;
  int end = 0;
  int first_token = 0;  // with kTN: of all sequences
  int last_token = 0;

  __device__ int count() const { return end - begin; }
  /// Tokens of a step of packed sequences that lie before the last boundary: 64 or less.
  __device__ int tokens(int step) const { return last_token - first_token - step * kTileDepth; }
};

template <class Config, class Operands>
__device__ Steps find_steps(const Operands& operands, int term, const Tile& tile) {
  Steps steps;
  if constexpr (Config::kContractsTokens) {
    const int T = static_cast<int>(operands.T);
    steps.last_token = T;
    if (operands.cu_seqlens != nullptr) {
      steps.first_token = min(max(operands.cu_seqlens[0], 0), T);
      steps.last_token = max(min(operands.cu_seqlens[operands.N], T), steps.first_token);
    }
    steps.end = static_cast<int>(operands.B) * operands.steps_per_batch.divisor;
    if (operands.cu_seqlens != nullptr) {  // B = 1
      const int most = (steps.last_token - steps.first_token + kTileDepth - 1) / kTileDepth;
      steps.end = min(steps.end, most);
    }
  } else {
    steps.end = (operands.depth[term] + kTileDepth - 1) / kTileDepth;
  }
  const int all = steps.end;
  if constexpr (Config::kParts > 1) {
    const int per_part = (all + Config::kParts - 1) / Config::kParts;
    steps.begin = min(static_cast<int>(cute::block_rank_in_cluster()) * per_part, all);
    steps.end = min(steps.begin + per_part, all);
  } else if constexpr (HasTail<Operands>) {
    if (tile.part >= 0) {
      const auto& tail = operands.tail;
      const int begin = tile.part * tail.steps_per_part - tail.steps_before[term];
      steps.begin = min(max(begin, 0), all);
      steps.end = min(max(begin + tail.steps_per_part, 0), all);
    }
  }
  return steps;
}

/// Steps of a tile in all terms.
template <class Config, class Operands>
__device__ int count_steps(const Operands& operands, const Tile& tile) {
  int count = 0;
#pragma unroll
  for (int term = 0; term < Operands::kTerms; ++term) {
    count += find_steps<Config>(operands, term, tile).count();
  }
  return count;
}

/// Steps behind those of a tile that bring the addend: 64 rows each, in place of B.
constexpr int kAddendSteps = 2;
template <class Config, class Operands>
__device__ bool adds(const Operands& operands) {
  if constexpr (HasAddend<Operands>) {
    return operands.addend.is_there && (Config::kParts == 1 || cute::block_rank_in_cluster() == 0);
  }
  return false;
}

/// One of the two operands, for the warp that loads it: in boxes of some rows of the result, or
/// columns, one behind the other.
template <class Config, bool kIsA>
struct Operand {
  static constexpr Major kMajor = kIsA ? kMajorA<Config> : kMajorB<Config>;
  static constexpr int kRows = kIsA ? kTileRows : Config::kColumns;
  static constexpr int kBytes = kRows * kTileDepth * 2;

  /// Boxes of so many rows or columns.
  struct Boxes {
    int span;
    int count;
    __device__ int bytes() const { return span * kTileDepth * 2; }
  };
  /// Those of a tile from `first` on that lie in a matrix of so many rows, in part at least; of
  /// each of a pair.
  template <bool kPaired>
  static __device__ Boxes boxes(int first, int rows) {
    constexpr int kMost = kRows / (kPaired ? 2 : 1);
    const int span =
        kIsA ? box_rows_a(Config::kLayout, rows) : box_rows_b(Config::kLayout, Config::kColumns);
    return {span, (min(rows - first, kMost) + span - 1) / span};
  }

  /// Starts loading a box. why A is kept: CTAs sweep over B's columns with the same rows of it,
  /// while results pass through the L2.
  static __device__ void load_box(const CUtensorMap& map, Barrier& full, char* to, int row,
                                  int depth, int batch) {
    using Hint = cute::TMA::CacheHintSm90;
    constexpr auto kHint = static_cast<std::uint64_t>(
        kIsA && kMajor == Major::K ? Hint::EVICT_LAST : Hint::EVICT_NORMAL);
    constexpr bool kDepthFirst = kMajor == Major::K;
    cute::SM90_TMA_LOAD_4D::copy(&map, &full.word, kHint, to, kDepthFirst ? depth : row, 0,
                                 kDepthFirst ? row : depth, batch);
  }

  /// Loads boxes from `row` on, at `depth` of the contracted axis, and as many of another map to
  /// `behind` them, if there is one: of the other of a pair, or A's gate. One thread.
  static __device__ void load(const CUtensorMap& map, const CUtensorMap* other, int behind,
                              Barrier& full, char* to, Boxes boxes, int row, int depth, int batch) {
    full.arrive_and_expect(boxes.count * boxes.bytes() * (other != nullptr ? 2 : 1));
#pragma unroll 1  // there are few registers
    for (int box = 0; box < boxes.count; ++box, row += boxes.span, to += boxes.bytes()) {
      load_box(map, full, to, row, depth, batch);
      if (other != nullptr) load_box(*other, full, to + behind, row, depth, batch);
    }
  }
};

/// Loads the addend's rows from `row` on. One thread of each warp that loads; A's has nothing to.
template <class Config, bool kIsA>
__device__ void load_addend(const CUtensorMap& map, Barrier& full, char* to, const Tile& tile,
                            int row) {
  if constexpr (kIsA) {
    full.arrive();
  } else {
    full.arrive_and_expect(Config::kPanels * kPanelBytes);
#pragma unroll
    for (int panel = 0; panel < Config::kPanels; ++panel) {
      cuda::load_panel(map, full, to + panel * kPanelBytes,
                       {tile.column + 64 * panel, 0, row, tile.outer});
    }
  }
}

/// Loads all steps of a tile's operand. A whole warp, so that addresses are uniform; one lane does
/// it.
template <class Config, bool kIsA, class Operands>
__device__ void load_tile(const Operands& operands, const Tile& tile, Shared<Config>& shared,
                          RingPosition<kStagesOf<Config, kIsA>>& at) {
  using Operand = Operand<Config, kIsA>;
  constexpr bool kPaired = !kIsA && Operands::kPaired;
  static_assert(!kPaired || Config::kLayout == Layout::kNT);
  auto& ring = ring_of<kIsA>(shared);
  const bool elected = cute::elect_one_sync();
  const int row = kIsA ? tile.row : tile.column;
  const typename Operand::Boxes boxes =
      Operand::template boxes<kPaired>(row, kIsA ? operands.rows : operands.columns[tile.segment]);
  for (int term = 0; term < Operands::kTerms; ++term) {
    const Steps steps = find_steps<Config>(operands, term, tile);
    const CUtensorMap* map = kIsA ? &operands.a[term] : &operands.b[term + tile.segment];
    const CUtensorMap* other = kPaired ? map + 1 : nullptr;
    if constexpr (kIsA && Config::kGated) other = &operands.gate;
    constexpr int kBehind = kPaired ? Operand::kBytes / 2 : Operand::kBytes;
    int batch = kIsA ? tile.outer : 0, first = steps.begin;
    if constexpr (Config::kContractsTokens) operands.steps_per_batch(batch, first, steps.begin);
    int depth = first * kTileDepth;
    for (int step = steps.begin; step < steps.end; ++step, at.advance()) {
      ring.wait_empty(at);
      if (elected) {
        Operand::load(*map, other, kBehind, ring.full[at.stage], place_in<kIsA>(shared, at.stage),
                      boxes, row, steps.first_token + depth, batch);
      }
      depth += kTileDepth;
      if (Config::kContractsTokens && depth == operands.steps_per_batch.divisor * kTileDepth) {
        depth = 0;
        ++batch;
      }
    }
  }
  if constexpr (HasAddend<Operands> && !(kIsA && Config::kGated)) {
    for (int half = 0; half < kAddendSteps && adds<Config>(operands); ++half, at.advance()) {
      ring.wait_empty(at);
      if (elected) {
        load_addend<Config, kIsA>(operands.addend.map, ring.full[at.stage],
                                  shared.stages[at.stage].b, tile, tile.row + 64 * half);
      }
    }
  }
}

/// Loads an operand of all tiles of the CTA. A whole warp. `late`: it follows the stream only after
/// the first tile.
template <class Config, bool kIsA, class Operands>
__device__ void load_tiles(const Operands& operands, Shared<Config>& shared, bool late = false) {
  RingPosition<kStagesOf<Config, kIsA>> at;
  for (int i = first_tile(operands); i < operands.order.count; i = next_tile(operands, i)) {
    load_tile<Config, kIsA>(operands, tile_at<Config>(operands, i), shared, at);
    if (late) follow_stream();
    late = false;
  }
}

}  // namespace tandem::cuda::gemm
