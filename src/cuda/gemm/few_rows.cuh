// A B^T where A has few rows: up to 64 are a stream of B through the chip, bound by memory.
//
// The product is computed transposed, so that B's rows fill wgmma's 64 rows and A's its columns,
// in tiles that are no higher than they must be, and wgmma as wide as the tile is high. A CTA takes
// up to 128, 192 or twice 128 columns of the result, the rows of a tile and a part of the
// contracted axis; those of a cluster take the parts of one tile, and add them up
// (gemm/few_rows_sums.cuh).
//
//   role      threads                   work
//   products  two or three warpgroups   64 columns of a tile each; then the epilogue, a row by a
//                                       thread for each of its four columns
//   load      a lane behind them        B and A by TMA
// Of tiles of up to 64 rows two CTAs per SM, so that all run at once, and the next kernel's beside
// them. What a step asks for takes some 1.5 us to come, so that the steps under way bind up to 64
// rows beside memory: a stage is as wide and as high as the tile, and what is left holds others.
// Small B's are asked for, into the L2 cache, while the kernel before still runs.
//
// Floor: B's bytes, or 2 rows columns contracted flops.
#pragma once

#include <cutlass/arch/reg_reconfig.h>

#include <cute/arch/cluster_sm90.hpp>

#include "cuda/gemm/few_rows_sums.cuh"
#include "cuda/gemm/operands.h"
#include "cuda/parts/stream_order.cuh"
#include "cuda/parts/tma.cuh"
#include "cuda/parts/wgmma.cuh"
#include "cuda/runtime/launch.h"

namespace tandem::cuda::gemm {

/// Where a walk is in a ring of so many stages.
struct FewRowsPosition {
  int stage = 0;
  std::uint32_t parity = 0;

  __device__ void advance(const FewRowsStages& stages) {
    if (++stage == stages.count) {
      stage = 0;
      parity ^= 1;
    }
  }
};

template <class Config, class Operands>
__device__ FewRowsTile find_few_rows_tile(const Operands& operands) {
  FewRowsTile found{};
  const int rank = found.part = static_cast<int>(cute::block_rank_in_cluster());
  const int parts = found.parts = static_cast<int>(cute::cluster_shape().x);
  int column_tile = 0;
  operands.order.per_column(column_tile, found.row, static_cast<int>(blockIdx.x) / parts);
  found.row *= operands.tile_rows;
  found.rows = min(operands.rows - found.row, operands.tile_rows);
#pragma unroll
  for (int i = 1; i < Operands::kSegments; ++i) {
    found.segment += column_tile >= operands.tiles_before[i];
  }
  found.column =
      (column_tile - operands.tiles_before[found.segment]) * operands.tile_columns[found.segment];
  found.columns = operands.tile_columns[found.segment];
  const int steps = (operands.depth[0] + kTileDepth - 1) / kTileDepth;
  found.begin = steps * rank / parts;
  found.end = steps * (rank + 1) / parts;
  found.thread_column = found.column + column_of_thread<Config, Operands::kPaired>();
  found.thread_row =
      kRowsAtOnce * rank + static_cast<int>(threadIdx.x) / (Config::kTileColumns / 4);
  found.next_row = kRowsAtOnce * parts;
  return found;
}

/// Of a CTA's tiles side by side, one by itself.
template <class Config, class Operands>
__device__ FewRowsTile one_tile(const FewRowsTile& all, int index) {
  constexpr int kColumns = Config::kTileColumns / (Operands::kPaired ? 2 : 1);
  FewRowsTile one = all;
  one.column += index * kColumns;
  one.columns = max(min(all.columns - index * kColumns, kColumns), 0);
  one.thread_column += index * kColumns;
  return one;
}

/// Asks for what the CTA contracts of B, while the kernel before may still run. Threads of the
/// products, a column each.
template <class Operands>
__device__ void ask_for_b(const Operands& operands, const FewRowsTile& tile) {
  const int column = tile.column + static_cast<int>(threadIdx.x);
  const int begin = tile.begin * kTileDepth, end = min(tile.end * kTileDepth, operands.depth[0]);
  const int bytes = (end - begin) * 2 / 16 * 16;
  if (static_cast<int>(threadIdx.x) >= tile.columns || column >= operands.columns[tile.segment] ||
      bytes <= 0) {
    return;
  }
#pragma unroll
  for (int term = 0; term < (Operands::kPaired ? 2 : 1); ++term) {
    const MatrixTensor& b = operands.b_rows[tile.segment + term];
    prefetch_bytes(static_cast<const char*>(b.data) + (column * b.row_stride + begin) * 2, bytes);
  }
}

/// Loads the steps of a CTA. A warp; what it may read before the kernel before has ended is of B.
template <class Config, class Operands>
__device__ void load_few_rows(const Operands& operands, FewRowsShared<Config>& shared,
                              const FewRowsTile& tile, const FewRowsStages& stages) {
  const bool elected = cute::elect_one_sync();
  const int rows = operands.tile_rows + (Operands::kPaired ? 2 : 1) * tile.columns;
  const auto load_b = [&](int step, int stage) {
    Barrier& full = shared.ring.full[stage];
    char* to = shared.stages + stage * stages.bytes;
    full.arrive_and_expect(rows * kTileDepth * 2);
    const TileCoordinate columns{step * kTileDepth, 0, tile.column, 0};
    load_panel(operands.b[tile.segment], full, to, columns);
    if constexpr (Operands::kPaired) {
      load_panel(operands.b[1], full, to + stages.a_at / 2, columns);
    }
  };
  const int early =
      operands.b_is_there ? min(tile.begin + min(stages.count, kEarlySteps), tile.end) : tile.begin;
  for (int step = tile.begin; step < early && elected; ++step) load_b(step, step - tile.begin);
  follow_stream();
  FewRowsPosition at;
  for (int step = tile.begin; step < tile.end; ++step, at.advance(stages)) {
    shared.ring.empty[at.stage].wait(at.parity ^ 1);
    if (elected) {
      if (step >= early) load_b(step, at.stage);
      load_panel(operands.a[0], shared.ring.full[at.stage],
                 shared.stages + at.stage * stages.bytes + stages.a_at,
                 {step * kTileDepth, 0, tile.row, 0});
    }
  }
  __syncwarp();
}

/// Multiplies what a CTA loads, kWidth rows of it. Threads of the products.
template <class Config, int kWidth, class Operands>
__device__ void multiply_few_rows(FewRowsShared<Config>& shared, const FewRowsTile& tile,
                                  const FewRowsStages& stages,
                                  FewRowsSums<Config> (&sums)[Config::kTiles]) {
  constexpr int kTiles = Config::kTiles;
  using Accumulator = float[kWidth / 2];
  const auto acc = [&](int i) -> Accumulator& { return reinterpret_cast<Accumulator&>(sums[i]); };
  const int warpgroup = __shfl_sync(0xFFFFFFFFu, threadIdx.x / 128, 0);
  // Of a pair 64 columns each, of narrow tiles less; 96 of each are three panels in a row.
  constexpr bool kApart = Operands::kPaired && Config::kTileColumns == kFewRowsColumns;
  const int columns_at = warpgroup * (kApart ? stages.a_at / 2 : kPanelBytes);
  constexpr int kNextTile = Config::kTileColumns / (Operands::kPaired ? 128 : 64) * kPanelBytes;
  FewRowsPosition at;
  int behind = 0;
#pragma unroll 1
  for (int step = tile.begin; step < tile.end; ++step, at.advance(stages)) {
    shared.ring.full[at.stage].wait(at.parity);
    char* const stage = shared.stages + at.stage * stages.bytes;
#pragma unroll
    for (int j = 0; j < kTiles; ++j) fence_registers(acc(j));
    wgmma_begin();
    const std::uint64_t b = k_major_descriptor(stage + columns_at, 0);
    const std::uint64_t a = k_major_descriptor(stage + stages.a_at, 0);
#pragma unroll
    for (int i = 0; i < kTileDepth / 16; ++i) {
#pragma unroll
      for (int j = 0; j < kTiles; ++j) {
        wgmma_ss<typename Config::Element, kWidth, Major::K, Major::K>(
            acc(j), move_descriptor(b, j * kNextTile + 32 * i), move_descriptor(a, 32 * i),
            step > tile.begin || i > 0);
      }
    }
    wgmma_commit();
#pragma unroll
    for (int j = 0; j < kTiles; ++j) fence_registers(acc(j));
    if constexpr (Config::kCtas > 1) {  // why at once: stages are few
      wgmma_wait<0>();
      shared.ring.empty[at.stage].arrive();
    } else if (step > tile.begin) {
      wgmma_wait<1>();
      shared.ring.empty[behind].arrive();
    }
    behind = at.stage;
  }
  wgmma_wait<0>();
#pragma unroll
  for (int j = 0; j < kTiles; ++j) {
    fence_registers(acc(j));
    if (tile.begin < tile.end) continue;
#pragma unroll
    for (float& value : acc(j)) value = 0.0f;
  }
}

/// Calls multiply<width> with the least width of wgmma that holds so many rows.
template <class Config, int kWidth = Config::kLeastRows, class Multiply>
__device__ void with_width(int rows, Multiply multiply) {
  if constexpr (kWidth < Config::kRows) {  // why equal, not less: all of them are then one jump
    if (kWidth != max((rows + 7) / 8 * 8, Config::kLeastRows)) {
      return with_width<Config, kWidth + 8>(rows, multiply);
    }
  }
  multiply.template operator()<kWidth>();
}

/// Computes the CTA's tiles, and has what begin_epilogue(tile) returns finish(RowsLeft) their rows.
/// A single tile's is begun while the first loads are under way; two tiles' sums leave it no
/// registers. All threads of a kernel that does nothing else; `shared` is its dynamic shared
/// memory.
template <class Config, class Operands, class BeginEpilogue>
__device__ void run_few_rows(const Operands& operands, FewRowsShared<Config>& shared,
                             BeginEpilogue begin_epilogue) {
  constexpr int kLoadWarp = Config::kProductThreads / 32;
  constexpr int kTiles = Config::kTiles;
  const int warp = __shfl_sync(0xFFFFFFFFu, threadIdx.x / 32, 0);
  if (threadIdx.x == 0) {
    shared.ring.init(1, Config::kProductThreads);
    shared.others_full.init(1);
    fence_barriers_initialised();
  }
  if (threadIdx.x == Config::kProductThreads) {
    prefetch_tensor_map(operands.a[0]);
    for (const CUtensorMap& map : operands.b) prefetch_tensor_map(map);
  }
  __syncthreads();
  const FewRowsTile tile = find_few_rows_tile<Config>(operands);
  if (warp != kLoadWarp) {
    if (operands.asks_for_b) ask_for_b(operands, tile);
    follow_stream();
  }
  const FewRowsStages stages = few_rows_stages(
      Config::kRows, Config::kColumns, (Operands::kPaired ? 2 : 1) * ((tile.columns + 7) / 8 * 8),
      operands.tile_rows);
  if (warp >= kLoadWarp) {
    if constexpr (Config::kGivesRegisters) {
      cutlass::arch::warpgroup_reg_dealloc<Config::kLoadRegisters>();
    }
    if (warp == kLoadWarp) load_few_rows(operands, shared, tile, stages);
    for (int i = 0; i < kTiles && tile.parts > 1; ++i) sync_cluster_relaxed();
    return;
  }
  if constexpr (Config::kGivesRegisters) {
    cutlass::arch::warpgroup_reg_alloc<Config::kProductRegisters>();
  }
  FewRowsSums<Config> sums[kTiles];
  const auto multiply = [&]<int kWidth>() {
    multiply_few_rows<Config, kWidth, Operands>(shared, tile, stages, sums);
  };
  if constexpr (kTiles == 1) {
    const auto epilogue = begin_epilogue(tile);
    with_width<Config>(operands.tile_rows, multiply);
    leave_rows<Config, Operands::kPaired>(shared, tile, 0, sums[0]);
    epilogue.finish(RowsLeft<Config, Operands::kPaired>{shared, tile});
  } else {
    with_width<Config>(operands.tile_rows, multiply);
    // why found anew: kept, it would take registers.
    const auto find = [&](int i) {
      return one_tile<Config, Operands>(find_few_rows_tile<Config>(operands), i);
    };
#pragma unroll
    for (int i = 0; i < kTiles; ++i) {
      leave_rows<Config, Operands::kPaired>(shared, find(i), i, sums[i]);
      const FewRowsTile one = find(i);
      begin_epilogue(one).finish(RowsLeft<Config, Operands::kPaired>{shared, one});
    }
  }
}

/// Launches a kernel that calls run_few_rows<Config>; nothing without tiles.
template <class Config, class Params>
void launch_few_rows(const char* name, void (*kernel)(Params), const Params& params,
                     const FewRowsShape& shape, void* stream) {
  static_assert(Config::kCtas * (sizeof(FewRowsShared<Config>) + 1024) <=
                kSharedMemoryPerMultiprocessor);
  const int column_tiles = params.tiles_before[Params::kSegments];
  if (column_tiles == 0 || params.rows == 0) return;
  Params shaped = params;
  shaped.tile_rows = shape.rows;
  std::int64_t columns = 0;
  for (const int of_segment : params.columns) columns += of_segment;
  const std::int64_t bytes = (Params::kPaired ? 2 : 1) * columns * params.depth[0] * 2;
  shaped.asks_for_b = Config::kCtas > 1 && bytes <= kAskedBytes && params.b_rows[0].data != nullptr;
  shaped.order.per_column = cutlass::FastDivmod(shape.row_tiles);
  launch_kernel(name, kernel,
                {.blocks = static_cast<unsigned>(column_tiles * shape.row_tiles * shape.parts),
                 .threads = Config::kThreads,
                 .cluster = static_cast<unsigned>(shape.parts),
                 .shared_bytes = sizeof(FewRowsShared<Config>)},
                static_cast<cudaStream_t>(stream), shaped);
}

}  // namespace tandem::cuda::gemm
