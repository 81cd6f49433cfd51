// attention_weights_short_rows_kernel: w = softmax(scale q kt + mask), in memory, for rows of so
// few keys that 64 of them fit into the registers of a CTA: each score is made once.
//
// A CTA has an equal share of all tiles of 64 queries, one after the other, and a warpgroup 128
// keys:
//   S = Q Kt         in two halves of 64 keys
//   e = 2^(c S)      c = scale log2 e; the sums l of a warpgroup's keys
//   w = e / L        L = sum l over the warpgroups, which meet here alone
// The products of the next tile begin as soon as a half has been stored. Keys lie in shared memory
// in such an order that a thread's scores are of eight neighbours at a time: weights go to memory
// from registers, 16 bytes a piece, or through shared memory where rows are not whole pieces. The
// keys of the next head are loaded meanwhile. A row whose L fp32 does not hold well is made once
// more, with e = 2^(c S - m) and m = c max S.
//
// Floor: w once. What binds: a warp's chain of instructions, of which CTAs side by side hide a
// part.
//
// Numerics: as attention_weights_whole_rows_kernel's.
// Shared memory: 49 KB for 128 keys, of which a multiprocessor has four CTAs; 81 KB for 256, two;
// 114 KB for 384, one. Where rows are not whole pieces 58 KB, three CTAs; 99 KB, two; 141 KB, one.
#pragma once

#include "cuda/attention_weights/short_rows_tiles.cuh"
#include "cuda/parts/stream_order.cuh"

namespace tandem::cuda::attention_weights {

template <class Config>
__global__
__launch_bounds__(Config::kThreads, Config::kCtas) void attention_weights_short_rows_kernel(
    const __grid_constant__ ForwardParams params) {
  extern __shared__ __align__(1024) char shared_memory[];
  auto& shared = *reinterpret_cast<ShortRowsShared<Config>*>(shared_memory);
  if (threadIdx.x == 0) {
    for (Barrier& full : shared.queries) full.init(1);
    fence_barriers_initialised();
    prefetch_tensor_map(params.q_map);
  }
  __syncthreads();
  follow_stream();
  ShortRowsTiles<Config>{params, shared}.run();
}

}  // namespace tandem::cuda::attention_weights
