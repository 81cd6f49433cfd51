// The last tiles of a product by parts of their depth (gemm/operands.h): what a part leaves, and
// how all of a tile's are added up.
#pragma once

#include "cuda/gemm/epilogue.cuh"
#include "cuda/gemm/schedule.cuh"
#include "cuda/parts/stream_order.cuh"
#include "cuda/runtime/launch.h"

namespace tandem::cuda::gemm {

constexpr int kSumThreads = 256;

/// Fours of a fragment's values, as its threads have them: of 8 columns one each.
template <class Config>
constexpr int kFours = Config::kColumns / 8 * 128;

/// Leaves a fragment of a part. All threads of its warpgroup.
template <class Config, class Operands>
__device__ void store_part(const Operands& operands, const Fragment<Config::kColumns>& fragment) {
  const std::int64_t half = 2 * std::int64_t{fragment.place} + fragment.row / 64 % 2;
  float4* to = reinterpret_cast<float4*>(operands.tail.partial_sums) + half * kFours<Config> +
               threadIdx.x % 128;
#pragma unroll
  for (int block = 0; block < Config::kColumns / 8; ++block) {
    const float* values = fragment.values + 4 * block;
    to[128 * block] = make_float4(values[0], values[1], values[2], values[3]);
  }
}

/// Adds up the parts of a thread's four values and calls store(values, row, segment, column): of
/// two neighbouring columns in that row, then in row + 8; they may lie behind the result's last
/// ones.
template <class Config, class Operands, class Store>
__device__ void sum_tail(const Operands& operands, Store store) {
  const auto& tail = operands.tail;
  const int index = static_cast<int>(blockIdx.x * kSumThreads + threadIdx.x);
  const std::int64_t in_tile = 2 * kFours<Config>;
  const auto* from = reinterpret_cast<const float4*>(tail.partial_sums) + blockIdx.y * in_tile;
  float4 sum{};
#pragma unroll 8
  for (int part = 0; part < tail.parts; ++part) {
    const float4 piece = from[part * tail.tiles * in_tile + index];
    sum.x += piece.x;
    sum.y += piece.y;
    sum.z += piece.z;
    sum.w += piece.w;
  }
  const Tile tile = tile_at<Config>(operands, tail.first + static_cast<int>(blockIdx.y));
  const int row = tile.row + index / kFours<Config> * 64 + fragment_row();
  const int column = tile.column + fragment_column(index % kFours<Config> / 128);
  store({sum.x, sum.y, sum.z, sum.w}, row, tile.segment, column);
}

/// Launches a kernel that calls sum_tail<Config>; nothing without a tail.
template <class Config, class Params>
void launch_tail_sums(const char* name, void (*kernel)(Params), const Params& params,
                      void* stream) {
  static_assert(2 * kFours<Config> % kSumThreads == 0 && Config::kParts == 1);
  if (params.tail.tiles == 0) return;
  Params ordered = params;
  ordered.order = order_tiles<Config>(params);
  launch_kernel(name, kernel,
                {.blocks = 2 * kFours<Config> / kSumThreads,
                 .blocks_y = static_cast<unsigned>(params.tail.tiles),
                 .threads = kSumThreads},
                static_cast<cudaStream_t>(stream), ordered);
}

}  // namespace tandem::cuda::gemm
