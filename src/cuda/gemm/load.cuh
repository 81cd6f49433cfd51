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

/// The steps of 64 that a tile contracts in a term.
struct Steps {
  int begin = 0;
  int end = 0;
  int first_token = 0;  // with kTN: of all sequences
  int last_token = 0;
  int per_batch = kMaxIndex / kTileDepth;  // of a batch row, with kTN

  __device__ int count() const { return end - begin; }
  /// Tokens of a step that lie before the last boundary: 64 or less.
  __device__ int tokens(int step) const {
    return last_token - first_token - step % per_batch * kTileDepth;
  }
};

template <class Config, class Operands>
__device__ Steps find_steps(const Operands& operands, int term, int slice) {
  Steps steps;
  if constexpr (Config::kContractsTokens) {
    const int T = static_cast<int>(operands.T);
    steps.last_token = T;
    if (operands.cu_seqlens != nullptr) {
      steps.first_token = min(max(operands.cu_seqlens[0], 0), T);
      steps.last_token = max(min(operands.cu_seqlens[operands.N], T), steps.first_token);
    }
    steps.per_batch = (T + kTileDepth - 1) / kTileDepth;
    const std::int64_t all = operands.B * steps.per_batch;
    steps.begin = static_cast<int>(all * slice / operands.slices);
    steps.end = static_cast<int>(all * (slice + 1) / operands.slices);
    if (operands.cu_seqlens != nullptr) {  // B = 1
      const int most = (steps.last_token - steps.first_token + kTileDepth - 1) / kTileDepth;
      steps.end = max(min(steps.end, most), steps.begin);
    }
  } else {
    steps.end = (operands.depth[term] + kTileDepth - 1) / kTileDepth;
  }
  return steps;
}

/// Steps of a tile in all terms.
template <class Config, class Operands>
__device__ int count_steps(const Operands& operands, int slice) {
  int count = 0;
#pragma unroll
  for (int term = 0; term < Operands::kTerms; ++term) {
    count += find_steps<Config>(operands, term, slice).count();
  }
  return count;
}

/// Steps behind those of a tile that bring the addend: 64 rows each, in place of B.
constexpr int kAddendSteps = 2;
template <class Operands>
__device__ bool adds(const Operands& operands) {
  if constexpr (HasAddend<Operands>) return operands.addend.is_there;
  return false;
}

/// One of the two operands, for the warp that loads it.
template <class Config, bool kIsA>
struct Operand {
  static constexpr Major kMajor = kIsA ? kMajorA<Config> : kMajorB<Config>;
  static constexpr int kRows = kIsA ? kTileRows : Config::kColumns;
  static constexpr int kBytes = kRows * kTileDepth * 2;

  /// Starts loading a panel. why A is kept: CTAs sweep over B's columns with the same rows of it,
  /// while results pass through the L2.
  static __device__ void load_panel(const CUtensorMap& map, Barrier& full, void* panel,
                                    TileCoordinate at) {
    using Hint = cute::TMA::CacheHintSm90;
    constexpr auto kHint = static_cast<std::uint64_t>(
        kIsA && kMajor == Major::K ? Hint::EVICT_LAST : Hint::EVICT_NORMAL);
    cute::SM90_TMA_LOAD_4D::copy(&map, &full.word, kHint, panel, at.column, at.head, at.time,
                                 at.batch);
  }

  /// Loads the rows from `row` on, at `depth` of the contracted axis; `kPaired`: as many rows of
  /// each of two maps, one below the other. One thread.
  template <bool kPaired>
  static __device__ void load(const CUtensorMap* maps, Barrier& full, char* to, int row, int depth,
                              int batch) {
    const CUtensorMap& map = maps[0];
    full.arrive_and_expect(kBytes);
    if constexpr (kMajor == Major::K) {
      constexpr int kBoxes = kPaired ? 2 : kIsA ? 1 : boxes_b(kRows);
#pragma unroll
      for (int box = 0; box < kBoxes; ++box) {
        load_panel(maps[kPaired ? box : 0], full, to + box * (kBytes / kBoxes),
                   {depth, 0, kPaired ? row : row + box * (kRows / kBoxes), batch});
      }
    } else {
#pragma unroll
      for (int panel = 0; panel < kRows / 64; ++panel) {
        load_panel(map, full, to + panel * kPanelBytes, {row + 64 * panel, 0, depth, batch});
      }
    }
  }
};

/// Loads A and the gate behind it. One thread.
template <class Config>
__device__ void load_gated(const CUtensorMap& a, const CUtensorMap& gate, Barrier& full, char* to,
                           TileCoordinate at) {
  using OperandA = Operand<Config, true>;
  full.arrive_and_expect(2 * OperandA::kBytes);
  OperandA::load_panel(a, full, to, at);
  OperandA::load_panel(gate, full, to + OperandA::kBytes, at);
}

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
                          typename Ring<Config::kStages>::Position& at) {
  constexpr bool kPaired = !kIsA && Operands::kPaired;
  static_assert(!kPaired || Config::kLayout == Layout::kNT);
  const bool elected = cute::elect_one_sync();
  for (int term = 0; term < Operands::kTerms; ++term) {
    const Steps steps = find_steps<Config>(operands, term, tile.outer);
    const CUtensorMap* maps = kIsA ? &operands.a[term] : &operands.b[term + tile.segment];
    int batch = steps.begin / steps.per_batch;
    int depth = steps.begin % steps.per_batch * kTileDepth;
    for (int step = steps.begin; step < steps.end; ++step, at.advance()) {
      shared.ring.wait_empty(at);
      if (elected) {
        auto& stage = shared.stages[at.stage];
        Barrier& full = shared.ring.full[at.stage];
        if constexpr (kIsA && Config::kGated) {
          load_gated<Config>(*maps, operands.gate, full, stage.a, {depth, 0, tile.row, tile.outer});
        } else {
          Operand<Config, kIsA>::template load<kPaired>(maps, full, kIsA ? stage.a : stage.b,
                                                        kIsA ? tile.row : tile.column,
                                                        steps.first_token + depth,
                                                        Config::kContractsTokens ? batch
                                                        : kIsA                   ? tile.outer
                                                                                 : 0);
        }
      }
      depth += kTileDepth;
      if (depth == steps.per_batch * kTileDepth) {
        depth = 0;
        ++batch;
      }
    }
  }
  if constexpr (HasAddend<Operands>) {
    for (int half = 0; half < kAddendSteps && adds(operands); ++half, at.advance()) {
      shared.ring.wait_empty(at);
      if (elected) {
        load_addend<Config, kIsA>(operands.addend.map, shared.ring.full[at.stage],
                                  shared.stages[at.stage].b, tile, tile.row + 64 * half);
      }
    }
  }
}

/// Loads an operand of all tiles of the CTA. A whole warp. `late`: it follows the stream only after
/// the first tile.
template <class Config, bool kIsA, class Operands>
__device__ void load_tiles(const Operands& operands, Shared<Config>& shared, bool late = false) {
  const Schedule<Config, Operands> schedule(operands);
  typename Ring<Config::kStages>::Position at;
  for (int i = blockIdx.x; i < schedule.count(); i += gridDim.x) {
    load_tile<Config, kIsA>(operands, schedule.at(i), shared, at);
    if (late) follow_stream();
    late = false;
  }
}

}  // namespace tandem::cuda::gemm
