// A B^T where A has few rows: up to 64 are a stream of B through the chip, bound by memory.
//
// The product is computed transposed, so that B's rows fill wgmma's 64 rows and A's its columns,
// in tiles that are no higher than they must be. A CTA takes up to 128 or 192 columns of the
// result, the rows of a tile and a part of the contracted axis; those of a cluster take the parts
// of one tile. Each finishes eight rows in turn: the others send it their sums of these, which it
// adds in the parts' order.
//
//   role      threads                   work
//   products  two or three warpgroups   64 columns of the result each; then the epilogue, a row by
//                                       a thread for each of its four columns
//   load      a lane of the last warp   B and A by TMA
// Of tiles of up to 64 rows two CTAs per SM, so that all run at once, and the next kernel's beside
// them. What a step asks for takes some 1.5 us to come, so that the steps under way bind up to 64
// rows beside memory: a stage is as wide and as high as the tile, and what is left holds others.
// Small B's are asked for, into the L2 cache, while the kernel before still runs.
//
// Floor: B's bytes, or 2 rows columns contracted flops.
#pragma once

#include <cute/arch/cluster_sm90.hpp>

#include "cuda/gemm/few_rows_config.h"
#include "cuda/gemm/operands.h"
#include "cuda/parts/cluster.cuh"
#include "cuda/parts/fragment.cuh"
#include "cuda/parts/ring.cuh"
#include "cuda/parts/stream_order.cuh"
#include "cuda/parts/tma.cuh"
#include "cuda/parts/wgmma.cuh"
#include "cuda/runtime/launch.h"

namespace tandem::cuda::gemm {

template <class Config>
struct FewRowsShared {
  struct Sums {
    float rows[Config::kRows][Config::kColumns + 4];  // padded: a warp's four lie in other banks
    // Other parts of what this CTA finishes, as wgmma's fragments lie.
    float4 others[Config::kGroupsOfOthers][Config::kProductThreads];
  };
  union alignas(1024) {
    char stages[Config::kStageBytes];
    Sums sums;  // once all stages have been read
  };
  Ring<FewRowsStages::kMost> ring;
  Barrier others_full;
};

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

/// Four neighbouring columns of a finished row of the result, a thread's; of tiles of 128 columns a
/// warp has a row. Of paired products its first 16 lanes have one, the others the other.
struct RowPiece {
  float (&values)[4];
  int row;
  int column;  // of the segment: the first; with pairs of the first 16 lanes alone
};

/// The part of a tile that a CTA contracts, in steps of 64.
struct FewRowsTile {
  int segment;
  int column;
  int columns;  // that are loaded, of each of a pair of products
  int row;
  int rows;
  int begin;
  int end;
  // What the calling thread finishes: four columns of each `next_row`'th row of the tile.
  int thread_column;  // of the segment: the first
  int thread_row;     // of the tile: the first
  int next_row;
};

/// Where the four columns of a row lie in a tile that a thread finishes.
template <class Config>
__device__ int column_of_thread() {
  return 4 * static_cast<int>(threadIdx.x % (Config::kColumns / 4));
}

/// Keeps a value in registers. why: a parameter found by a segment's number would be read anew for
/// each row, a chain of 400 clocks.
template <class Value>
__device__ Value in_registers(const Value& value) {
  struct Words {
    std::uint32_t word[sizeof(Value) / 4];
  };
  static_assert(sizeof(Words) == sizeof(Value));
  auto words = __builtin_bit_cast(Words, value);
#pragma unroll
  for (std::uint32_t& word : words.word) asm volatile("" : "+r"(word));
  return __builtin_bit_cast(Value, words);
}

template <class Config, class Operands>
__device__ FewRowsTile find_few_rows_tile(const Operands& operands, int rank, int parts) {
  FewRowsTile found{};
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
  found.thread_column = found.column + column_of_thread<Config>();
  found.thread_row = kRowsAtOnce * rank + static_cast<int>(threadIdx.x) / (Config::kColumns / 4);
  found.next_row = kRowsAtOnce * parts;
  return found;
}

/// The sums of a thread of the products, as wgmma's fragments lie: four of each kRowsAtOnce rows.
template <class Config>
using FewRowsSums = float[Config::kRows / kRowsAtOnce][4];

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

/// Leaves the sums of the rows that this CTA finishes in shared memory. Of the kParts CTAs that
/// contract a tile each finishes a group of rows in turn: the others send it theirs of these, and
/// it adds all in the parts' order. Threads of the products; warps without columns send nothing.
/// why sent: a read of another CTA's shared memory takes its way twice.
template <class Config, bool kPaired, int kParts>
__device__ void leave_rows(FewRowsShared<Config>& shared, int rank, const FewRowsTile& tile,
                           const FewRowsSums<Config>& sums) {
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const int warps = (tile.columns + 15) / 16;  // that have columns, of each of a pair
  const bool has_columns = (kPaired ? warp % 4 : warp) < warps;
  constexpr int kGroups = Config::kRows / kRowsAtOnce;
  constexpr int kMost = (kGroups + kParts - 1) / kParts;  // groups that a part finishes
  const int groups = (tile.rows + kRowsAtOnce - 1) / kRowsAtOnce;
  auto& others = shared.sums.others;
  if constexpr (kParts > 1) {
    if (threadIdx.x == 0) {
      const int own = (groups - rank + kParts - 1) / kParts;
      shared.others_full.arrive_and_expect((kParts - 1) * own * (kPaired ? 2 : 1) * warps * 32 *
                                           sizeof(float4));
    }
    sync_cluster_relaxed();  // all have read their stages
#pragma unroll
    for (int group = 0; group < kGroups; ++group) {
      const int to = group % kParts;
      if (group >= groups || to == rank || !has_columns) continue;
      const int place = (rank - (rank > to ? 1 : 0)) * kMost + group / kParts;
      send_to_cluster(&others[place][threadIdx.x], shared.others_full, to, sums[group]);
    }
    shared.others_full.wait(0);
  } else {
    cutlass::arch::NamedBarrier::sync(Config::kProductThreads, kRowsBarrier);
  }
#pragma unroll
  for (int group = 0; group < kGroups; ++group) {
    const int finisher = group % kParts;
    if (group >= groups || finisher != rank || !has_columns) continue;
    float sum[4] = {};
#pragma unroll
    for (int part = 0; part < kParts; ++part) {
      const float* piece = sums[group];
      float4 other;
      if (part != finisher) {
        other = others[(part - (part > finisher ? 1 : 0)) * kMost + group / kParts][threadIdx.x];
        piece = &other.x;
      }
#pragma unroll
      for (int i = 0; i < 4; ++i) sum[i] += piece[i];
    }
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int column = static_cast<int>(threadIdx.x) / 128 * 64 + fragment_row() + i / 2 * 8;
      shared.sums.rows[fragment_column(group) + i % 2][column] = sum[i];
    }
  }
  cutlass::arch::NamedBarrier::sync(Config::kProductThreads, kRowsBarrier);
}

/// An epilogue that holds something of each row that the calling thread finishes, in registers.
template <class Epilogue>
concept HoldsRows = requires {
  Epilogue::kHeldRows;
};

/// Calls finish(row of the tile, how many before it) for the rows that the calling thread finishes.
template <class Config, class Epilogue, class Finish>
__device__ void finish_rows(const FewRowsTile& tile, Finish finish) {
  if constexpr (HoldsRows<Epilogue>) {
    static_assert(Epilogue::kHeldRows * kRowsAtOnce >= Config::kRows);
#pragma unroll
    for (int i = 0; i < Epilogue::kHeldRows; ++i) {
      const int row = tile.thread_row + i * tile.next_row;
      if (row < tile.rows) finish(row, i);
    }
  } else {
    for (int row = tile.thread_row; row < tile.rows; row += tile.next_row) finish(row, 0);
  }
}

/// Computes the CTA's tile, and has its rows finished by what begin_epilogue(tile) returns while
/// the first loads are under way, called by the threads of a row with a RowPiece, and with how many
/// rows the thread has finished, if it HoldsRows. All threads of a kernel that does nothing else;
/// `shared` is its dynamic shared memory.
template <class Config, class Operands, class BeginEpilogue>
__device__ void run_few_rows(const Operands& operands, FewRowsShared<Config>& shared,
                             BeginEpilogue begin_epilogue) {
  constexpr int kLoadWarp = Config::kProductThreads / 32;
  const int warp = __shfl_sync(0xFFFFFFFFu, threadIdx.x / 32, 0);
  const int rank = static_cast<int>(cute::block_rank_in_cluster());
  const int parts = static_cast<int>(cute::cluster_shape().x);
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
  const FewRowsTile tile = find_few_rows_tile<Config>(operands, rank, parts);
  if (warp != kLoadWarp) {
    if (operands.asks_for_b) ask_for_b(operands, tile);
    follow_stream();
  }
  constexpr int kTerms = Operands::kPaired ? 2 : 1;
  const FewRowsStages stages = few_rows_stages(
      Config::kRows, Config::kColumns, kTerms * ((tile.columns + 7) / 8 * 8), operands.tile_rows);
  FewRowsPosition at;
  if (warp == kLoadWarp) {
    const bool elected = cute::elect_one_sync();
    const int rows = operands.tile_rows + kTerms * tile.columns;
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
    const int early = operands.b_is_there ? min(tile.begin + stages.count, tile.end) : tile.begin;
    for (int step = tile.begin; step < early && elected; ++step) load_b(step, step - tile.begin);
    follow_stream();
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
    if (parts > 1) sync_cluster_relaxed();
  } else {
    const auto epilogue = begin_epilogue(tile);
    FewRowsSums<Config> sums;
    float(&acc)[Config::kRows / 2] = reinterpret_cast<float(&)[Config::kRows / 2]>(sums);
    const int panel = warp / 4;
    int behind = 0;
#pragma unroll 1
    for (int step = tile.begin; step < tile.end; ++step, at.advance(stages)) {
      shared.ring.full[at.stage].wait(at.parity);
      char* const stage = shared.stages + at.stage * stages.bytes;
      fence_registers(acc);
      wgmma_begin();
      const std::uint64_t b = k_major_descriptor(
          stage + panel * (Operands::kPaired ? stages.a_at / 2 : kPanelBytes), 0);
      const std::uint64_t a = k_major_descriptor(stage + stages.a_at, 0);
#pragma unroll
      for (int i = 0; i < kTileDepth / 16; ++i) {
        wgmma_ss<typename Config::Element, Config::kRows, Major::K, Major::K>(
            acc, move_descriptor(b, 32 * i), move_descriptor(a, 32 * i),
            step > tile.begin || i > 0);
      }
      wgmma_commit();
      fence_registers(acc);
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
    fence_registers(acc);
    if (tile.begin == tile.end) {
#pragma unroll
      for (float& value : acc) value = 0.0f;
    }
    constexpr bool kPaired = Operands::kPaired;
    static_assert(kMostFewRowsParts == 4);
    switch (parts) {
      case 1: leave_rows<Config, kPaired, 1>(shared, rank, tile, sums); break;
      case 2: leave_rows<Config, kPaired, 2>(shared, rank, tile, sums); break;
      case 3: leave_rows<Config, kPaired, 3>(shared, rank, tile, sums); break;
      default: leave_rows<Config, kPaired, 4>(shared, rank, tile, sums);
    }
    finish_rows<Config, decltype(epilogue)>(tile, [&](int row, int before) {
      const float4 sum =
          *reinterpret_cast<const float4*>(&shared.sums.rows[row][column_of_thread<Config>()]);
      float values[4] = {sum.x, sum.y, sum.z, sum.w};
      const RowPiece piece{values, tile.row + row, tile.thread_column};
      if constexpr (HoldsRows<decltype(epilogue)>) {
        epilogue(piece, before);
      } else {
        epilogue(piece);
      }
    });
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
