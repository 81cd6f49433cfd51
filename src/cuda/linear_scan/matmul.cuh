// linear_scan_product_kernel: one 128 x 128 tile of x = u W^T, du = dx W or d_weight = dx^T u,
// fp32.
//
//   product   A [rows, contracted]     B [contracted, columns]   result
//   kProject  u [T,d], K-major         W^T, K-major              x, fp32
//   kInput    dx [T,D], K-major        W, MN-major               du, 16 bits
//   kWeight   dx^T, MN-major           u, MN-major               a slice's sum, fp32
//
// dx comes as two 16-bit tensors whose sum is dx to twice the digits: the products' loop runs over
// the smaller one first, then over the other. The tokens of d_weight are cut into slices of whole
// steps of 64; slices are added up afterwards, in their order. Of packed sequences only the tokens
// between the first and the last boundary enter: rows of a step behind them are zeroed in shared
// memory, for u may hold anything there.
//
// Role    threads               work
//   rows  warpgroups 0 and 1    64 rows each: products, the result
//   load  warp 8, one thread    A and B by TMA, 3 stages of 32 KB
// Two CTAs per SM: one's stores run beside the other's products.
//
//   load  ~~ step n+2 ~~   ~~ step n+3 ~~
//   rows  = step n =  = step n+1 =  ...  -store-
//
// Floor: 2 rows columns contracted flops, twice that for a split operand.
#pragma once

#include "cuda/linear_scan/matmul_params.h"
#include "cuda/parts/fragment.cuh"
#include "cuda/parts/ring.cuh"
#include "cuda/parts/stream_order.cuh"
#include "cuda/parts/tma.cuh"
#include "cuda/parts/wgmma.cuh"
#include "cuda/runtime/launch.h"

namespace tandem::cuda {

template <class ElementT, LinearScanProduct kProductT>
struct ProductConfig {
  using Element = ElementT;
  static constexpr LinearScanProduct kProduct = kProductT;
  static constexpr bool kWeight = kProduct == LinearScanProduct::kWeight;
  static constexpr Major kMajorA = kWeight ? Major::MN : Major::K;
  static constexpr Major kMajorB = kProduct == LinearScanProduct::kProject ? Major::K : Major::MN;
  static constexpr int kThreads = 288;
  static constexpr int kStages = 3;
  static constexpr int kOperandBytes = kProductTile * kProductStep * 2;
};

template <class Config>
struct ProductShared {
  struct Stage {
    alignas(1024) char a[Config::kOperandBytes];
    alignas(1024) char b[Config::kOperandBytes];
  };
  Stage stages[Config::kStages];
  Ring<Config::kStages> ring;
};

/// The tile of a CTA and what it contracts.
struct ProductTile {
  int batch;
  int row;
  int column;
  int part;
  int begin;  // first step of each term
  int end;
  int first_token;  // of kWeight: the first token of all sequences
  int last_token;
  int steps_per_batch;

  __device__ int count(const LinearScanProductParams& params) const {
    return params.terms * (end - begin);
  }
};

template <class Config>
__device__ ProductTile find_product_tile(const LinearScanProductParams& params) {
  ProductTile tile{};
  const int row_tiles = (params.rows + kProductTile - 1) / kProductTile;
  tile.row = static_cast<int>(blockIdx.x) % row_tiles * kProductTile;
  const int outer = static_cast<int>(blockIdx.x) / row_tiles;
  tile.column = static_cast<int>(blockIdx.y) * kProductTile;
  if constexpr (Config::kWeight) {
    const int T = static_cast<int>(params.T);
    tile.part = outer;
    tile.last_token = T;
    if (params.cu_seqlens != nullptr) {
      tile.first_token = min(max(params.cu_seqlens[0], 0), T);
      tile.last_token = max(min(params.cu_seqlens[params.N], T), tile.first_token);
    }
    tile.steps_per_batch = (T + kProductStep - 1) / kProductStep;
    const std::int64_t all = params.B * tile.steps_per_batch;
    tile.begin = static_cast<int>(all * outer / params.splits);
    tile.end = static_cast<int>(all * (outer + 1) / params.splits);
    if (params.cu_seqlens != nullptr) {  // B = 1
      const int steps = (tile.last_token - tile.first_token + kProductStep - 1) / kProductStep;
      tile.end = max(min(tile.end, steps), tile.begin);
    }
  } else {
    tile.batch = outer;
    tile.end = (params.depth + kProductStep - 1) / kProductStep;
  }
  return tile;
}

template <class Config>
__device__ void load_operands(const LinearScanProductParams& params, const ProductTile& tile,
                              ProductShared<Config>& shared) {
  typename Ring<Config::kStages>::Position at;
  constexpr int kHalf = Config::kOperandBytes / 2;
  for (int term = 0; term < params.terms; ++term) {
    const CUtensorMap& a_map = params.a[term];
    for (int step = tile.begin; step < tile.end; ++step, at.advance()) {
      shared.ring.wait_empty(at);
      auto& stage = shared.stages[at.stage];
      Barrier& full = shared.ring.full[at.stage];
      full.arrive_and_expect(2 * Config::kOperandBytes);
      if constexpr (Config::kWeight) {
        const int batch = step / tile.steps_per_batch;
        const int time = tile.first_token + step % tile.steps_per_batch * kProductStep;
        for (int half = 0; half < 2; ++half) {
          load_panel(a_map, full, stage.a + half * kHalf, {tile.row + 64 * half, 0, time, batch});
          load_panel(params.b, full, stage.b + half * kHalf,
                     {tile.column + 64 * half, 0, time, batch});
        }
      } else {
        const int k = step * kProductStep;
        load_panel(a_map, full, stage.a, {k, 0, tile.row, tile.batch});
        if constexpr (Config::kMajorB == Major::K) {
          load_panel(params.b, full, stage.b, {k, 0, tile.column, 0});
        } else {
          for (int half = 0; half < 2; ++half) {
            load_panel(params.b, full, stage.b + half * kHalf, {tile.column + 64 * half, 0, k, 0});
          }
        }
      }
    }
  }
}

/// Zeroes rows [from, 64) of both operands. All 256 threads of the products.
template <class Config>
__device__ void clear_tokens_behind(typename ProductShared<Config>::Stage& stage, int from) {
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

template <class Config>
__device__ void multiply(const LinearScanProductParams& params, const ProductTile& tile,
                         ProductShared<Config>& shared, int group, float (&acc)[kProductTile / 2]) {
  typename Ring<Config::kStages>::Position at, behind;
  const int steps = tile.end - tile.begin;
  const int count = tile.count(params);
  for (int i = 0; i < count; ++i) {
    shared.ring.wait_full(at);
    auto& stage = shared.stages[at.stage];
    if constexpr (Config::kWeight) {
      const int step = tile.begin + i % steps;
      const int from =
          tile.last_token - tile.first_token - step % tile.steps_per_batch * kProductStep;
      if (params.cu_seqlens != nullptr && from < kProductStep) {
        clear_tokens_behind<Config>(stage, from);
      }
    }
    if (i > 0 && i == steps) {  // the second term begins
      wgmma_wait<0>();
      fence_registers(acc);
#pragma unroll
      for (int j = 0; j < kProductTile / 2; ++j) acc[j] *= params.term_scale;
    }
    fence_registers(acc);
    wgmma_begin();
#pragma unroll
    for (int step = 0; step < 4; ++step) {
      const std::uint64_t a =
          Config::kMajorA == Major::K
              ? k_major_descriptor<kProductTile>(stage.a + group * panel_bytes(64), step)
              : mn_major_descriptor(stage.a + group * panel_bytes(64), step);
      const std::uint64_t b = Config::kMajorB == Major::K
                                  ? k_major_descriptor<kProductTile>(stage.b, step)
                                  : mn_major_descriptor(stage.b, step);
      wgmma_ss<typename Config::Element, kProductTile, Config::kMajorA, Config::kMajorB>(
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
    for (int j = 0; j < kProductTile / 2; ++j) acc[j] = 0.0f;
  }
}

template <class Config>
__device__ void store_product(const LinearScanProductParams& params, const ProductTile& tile,
                              int group, const float (&acc)[kProductTile / 2]) {
  using Stored = std::conditional_t<Config::kProduct == LinearScanProduct::kInput,
                                    typename Config::Element, float>;
  const int row = tile.row + 64 * group + fragment_row();
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int at = row + 8 * half;
    Stored* to;
    if constexpr (Config::kProduct == LinearScanProduct::kInput) {
      to = static_cast<Stored*>(params.narrow.data) + tile.batch * params.narrow.batch_stride +
           at * params.narrow.time_stride;
    } else {
      const std::int64_t outer = Config::kWeight ? tile.part : tile.batch;
      to = params.wide + (outer * params.rows + at) * params.columns;
    }
#pragma unroll
    for (int i = 0; i < kProductTile / 4; ++i) {
      const int column = tile.column + fragment_column(i / 2) + i % 2;
      if (at < params.rows && column < params.columns) {
        to[column] = static_cast<Stored>(acc[i / 2 * 4 + 2 * half + i % 2]);
      }
    }
  }
}

template <class Config>
__global__ __launch_bounds__(Config::kThreads, 2) void linear_scan_product_kernel(
    const __grid_constant__ LinearScanProductParams params) {
  extern __shared__ __align__(1024) char shared_memory[];
  auto& shared = *reinterpret_cast<ProductShared<Config>*>(shared_memory);
  const int warpgroup = __shfl_sync(0xFFFFFFFFu, threadIdx.x / 128, 0);
  if (threadIdx.x == 0) {
    shared.ring.init(1, 256);
    fence_barriers_initialised();
  }
  follow_stream();
  __syncthreads();
  const ProductTile tile = find_product_tile<Config>(params);
  if (warpgroup == 2) {
    if (threadIdx.x == 256) load_operands<Config>(params, tile, shared);
  } else {
    float acc[kProductTile / 2];
    multiply<Config>(params, tile, shared, warpgroup, acc);
    store_product<Config>(params, tile, warpgroup, acc);
  }
}

template <class Element, LinearScanProduct kProduct>
void launch_linear_scan_product(const LinearScanProductParams& params, void* stream) {
  using Config = ProductConfig<Element, kProduct>;
  const auto tiles = [](int extent) { return (extent + kProductTile - 1) / kProductTile; };
  const std::int64_t outer = Config::kWeight ? params.splits : params.B;
  const std::int64_t blocks = outer * tiles(params.rows);
  if (blocks == 0) return;
  launch_kernel("linear_scan_backward", linear_scan_product_kernel<Config>,
                {.blocks = static_cast<unsigned>(blocks),
                 .blocks_y = static_cast<unsigned>(tiles(params.columns)),
                 .threads = Config::kThreads,
                 .shared_bytes = sizeof(ProductShared<Config>)},
                static_cast<cudaStream_t>(stream), params);
}

}  // namespace tandem::cuda
