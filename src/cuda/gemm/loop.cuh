// The GEMM main loop: one 128 x 128 tile of A B^T, A B or A^T B by a CTA, fp32, for kernels that
// bring an epilogue.
//
//   layout  A                          B                           contracted
//   kNT     [rows, depth], K-major     [columns, depth], K-major   64 columns at a time
//   kNN     [rows, depth], K-major     [depth, columns], MN-major  the same
//   kTN     [tokens, rows], MN-major   [tokens, columns], MN-major 64 tokens at a time, in slices
//
// A may come as two 16-bit tensors whose sum has twice the digits: the loop runs over the smaller
// one first, then over the other. With kTN tokens are cut into slices of whole steps of 64, whose
// results are to be added up in their order (gemm/convert.h). Of packed sequences only the tokens
// between the first and the last boundary enter: rows of a step behind them are zeroed in shared
// memory, for the tensors may hold anything there.
//
//   role  threads               work
//   rows  warpgroups 0 and 1    64 rows each: products, the epilogue
//   load  warp 8, one thread    A and B by TMA, 3 stages of 32 KB
// Two CTAs per SM: one's epilogue runs beside the other's products.
//
//   load  ~~ step n+2 ~~   ~~ step n+3 ~~
//   rows  = step n =  = step n+1 =  ...  -epilogue-
//
// Floor: 2 rows columns contracted flops, twice that for two terms.
#pragma once

#include "cuda/gemm/config.h"
#include "cuda/gemm/epilogue.cuh"
#include "cuda/gemm/operands.h"
#include "cuda/parts/ring.cuh"
#include "cuda/parts/stream_order.cuh"
#include "cuda/parts/tma.cuh"
#include "cuda/parts/wgmma.cuh"
#include "cuda/runtime/launch.h"
#include "cuda/runtime/plan.h"

namespace tandem::cuda::gemm {

template <class Config>
constexpr Major kMajorA = Config::kLayout == Layout::kTN ? Major::MN : Major::K;
template <class Config>
constexpr Major kMajorB = Config::kLayout == Layout::kNT ? Major::K : Major::MN;

template <class Config>
struct Shared {
  struct Stage {
    alignas(1024) char a[Config::kOperandBytes];
    alignas(1024) char b[Config::kOperandBytes];
  };
  Stage stages[Config::kStages];
  Ring<Config::kStages> ring;
};

/// The tile of a CTA and what it contracts.
struct Tile {
  int batch;
  int row;
  int column;
  int slice;
  int begin;  // first step of each term
  int end;
  int first_token;  // with kTN: the first token of all sequences
  int last_token;
  int steps_per_batch;

  __device__ int count(const Operands& operands) const { return operands.terms * (end - begin); }
};

template <class Config>
__device__ Tile find_tile(const Operands& operands) {
  Tile tile{};
  const int row_tiles = (operands.rows + kTileRows - 1) / kTileRows;
  tile.row = static_cast<int>(blockIdx.x) % row_tiles * kTileRows;
  const int outer = static_cast<int>(blockIdx.x) / row_tiles;
  tile.column = static_cast<int>(blockIdx.y) * kTileColumns;
  if constexpr (Config::kContractsTokens) {
    const int T = static_cast<int>(operands.T);
    tile.slice = outer;
    tile.last_token = T;
    if (operands.cu_seqlens != nullptr) {
      tile.first_token = min(max(operands.cu_seqlens[0], 0), T);
      tile.last_token = max(min(operands.cu_seqlens[operands.N], T), tile.first_token);
    }
    tile.steps_per_batch = (T + kTileDepth - 1) / kTileDepth;
    const std::int64_t all = operands.B * tile.steps_per_batch;
    tile.begin = static_cast<int>(all * outer / operands.slices);
    tile.end = static_cast<int>(all * (outer + 1) / operands.slices);
    if (operands.cu_seqlens != nullptr) {  // B = 1
      const int steps = (tile.last_token - tile.first_token + kTileDepth - 1) / kTileDepth;
      tile.end = max(min(tile.end, steps), tile.begin);
    }
  } else {
    tile.batch = outer;
    tile.end = (operands.depth + kTileDepth - 1) / kTileDepth;
  }
  return tile;
}

/// Loads all steps of a tile. One thread.
template <class Config>
__device__ void load_operands(const Operands& operands, const Tile& tile, Shared<Config>& shared) {
  typename Ring<Config::kStages>::Position at;
  constexpr int kHalf = Config::kOperandBytes / 2;
  for (int term = 0; term < operands.terms; ++term) {
    const CUtensorMap& a_map = operands.a[term];
    for (int step = tile.begin; step < tile.end; ++step, at.advance()) {
      shared.ring.wait_empty(at);
      auto& stage = shared.stages[at.stage];
      Barrier& full = shared.ring.full[at.stage];
      full.arrive_and_expect(2 * Config::kOperandBytes);
      if constexpr (Config::kContractsTokens) {
        const int batch = step / tile.steps_per_batch;
        const int time = tile.first_token + step % tile.steps_per_batch * kTileDepth;
        for (int half = 0; half < 2; ++half) {
          load_panel(a_map, full, stage.a + half * kHalf, {tile.row + 64 * half, 0, time, batch});
          load_panel(operands.b, full, stage.b + half * kHalf,
                     {tile.column + 64 * half, 0, time, batch});
        }
      } else {
        const int k = step * kTileDepth;
        load_panel(a_map, full, stage.a, {k, 0, tile.row, tile.batch});
        if constexpr (kMajorB<Config> == Major::K) {
          load_panel(operands.b, full, stage.b, {k, 0, tile.column, 0});
        } else {
          for (int half = 0; half < 2; ++half) {
            load_panel(operands.b, full, stage.b + half * kHalf,
                       {tile.column + 64 * half, 0, k, 0});
          }
        }
      }
    }
  }
}

/// Zeroes rows [from, 64) of both operands. All 256 threads of the products.
template <class Config>
__device__ void clear_tokens_behind(typename Shared<Config>::Stage& stage, int from) {
  const int thread = threadIdx.x;
  const int pieces = (64 - from) * 8;
  for (int i = thread; i < 4 * pieces; i += 256) {
    char* operand = i / pieces < 2 ? stage.a : stage.b;
    char* panel = operand + i / pieces % 2 * panel_bytes(64);
    const int piece = i % pieces;
    *reinterpret_cast<uint4*>(panel + panel_offset(from + piece / 8, piece % 8)) = uint4{};
  }
  fence_shared_for_async_proxy();
  cutlass::arch::NamedBarrier::sync(256, 1);
}

/// Computes a warpgroup's rows of a tile.
template <class Config>
__device__ void multiply(const Operands& operands, const Tile& tile, Shared<Config>& shared,
                         int warpgroup, float (&acc)[kTileColumns / 2]) {
  typename Ring<Config::kStages>::Position at, behind;
  const int steps = tile.end - tile.begin;
  const int count = tile.count(operands);
  for (int i = 0; i < count; ++i) {
    shared.ring.wait_full(at);
    auto& stage = shared.stages[at.stage];
    if constexpr (Config::kContractsTokens) {
      const int step = tile.begin + i % steps;
      const int from =
          tile.last_token - tile.first_token - step % tile.steps_per_batch * kTileDepth;
      if (operands.cu_seqlens != nullptr && from < kTileDepth) {
        clear_tokens_behind<Config>(stage, from);
      }
    }
    if (i > 0 && i == steps) {  // the second term begins
      wgmma_wait<0>();
      fence_registers(acc);
#pragma unroll
      for (int j = 0; j < kTileColumns / 2; ++j) acc[j] *= operands.term_scale;
    }
    fence_registers(acc);
    wgmma_begin();
#pragma unroll
    for (int step = 0; step < kTileDepth / 16; ++step) {
      const std::uint64_t a =
          kMajorA<Config> == Major::K
              ? k_major_descriptor<kTileRows>(stage.a + warpgroup * panel_bytes(64), step)
              : mn_major_descriptor(stage.a + warpgroup * panel_bytes(64), step);
      const std::uint64_t b = kMajorB<Config> == Major::K
                                  ? k_major_descriptor<kTileColumns>(stage.b, step)
                                  : mn_major_descriptor(stage.b, step);
      wgmma_ss<typename Config::Element, kTileColumns, kMajorA<Config>, kMajorB<Config>>(
          acc, a, b, i > 0 || step > 0);
    }
    wgmma_commit();
    fence_registers(acc);
    if (i > 0) {
      wgmma_wait<1>();
      shared.ring.empty[behind.stage].arrive();
      behind.advance();
    }
    at.advance();
  }
  wgmma_wait<0>();
  fence_registers(acc);
  if (count == 0) {
#pragma unroll
    for (int j = 0; j < kTileColumns / 2; ++j) acc[j] = 0.0f;
  }
}

/// Computes the CTA's tile and calls epilogue(fragment) in both warpgroups of rows. All threads of
/// a kernel that does nothing else; `shared` is its dynamic shared memory.
template <class Config, class Epilogue>
__device__ void run(const Operands& operands, Shared<Config>& shared, Epilogue epilogue) {
  const int warpgroup = __shfl_sync(0xFFFFFFFFu, threadIdx.x / 128, 0);
  if (threadIdx.x == 0) {
    shared.ring.init(1, 256);
    fence_barriers_initialised();
  }
  follow_stream();
  __syncthreads();
  const Tile tile = find_tile<Config>(operands);
  if (warpgroup == 2) {
    if (threadIdx.x == 256) load_operands<Config>(operands, tile, shared);
  } else {
    float acc[kTileColumns / 2];
    multiply<Config>(operands, tile, shared, warpgroup, acc);
    const int outer = Config::kContractsTokens ? tile.slice : tile.batch;
    epilogue(Fragment{acc, tile.row + 64 * warpgroup, tile.column, outer});
  }
}

/// Launches a kernel that calls run<Config>, one CTA per tile; none without tiles. Params are
/// Operands and what the epilogue needs.
template <class Config, class Params>
void launch(const char* name, void (*kernel)(Params), const Params& params, void* stream) {
  const std::int64_t outer = Config::kContractsTokens ? params.slices : params.B;
  const std::int64_t blocks = outer * ceil_div(params.rows, kTileRows);
  if (blocks == 0) return;
  launch_kernel(name, kernel,
                {.blocks = static_cast<unsigned>(blocks),
                 .blocks_y = static_cast<unsigned>(ceil_div(params.columns, kTileColumns)),
                 .threads = Config::kThreads,
                 .shared_bytes = sizeof(Shared<Config>)},
                static_cast<cudaStream_t>(stream), params);
}

}  // namespace tandem::cuda::gemm
