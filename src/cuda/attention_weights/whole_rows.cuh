// attention_weights_whole_rows_kernel: w = softmax(scale q kt + mask), in memory, where a row's
// scores fit into registers: each is made once.
//
// A CTA has an equal share of all tiles of 32 queries. The keys of a head stay in shared memory
// while its queries go by, 64 of them for each of the CTA's warps:
//   St = K Qt        keys are rows, so that 32 queries make a product; 64 scores a thread
//   e  = 2^(c St)    c = scale log2 e; the sums l of a warp's keys
//   w  = e / L       L = sum l over the warps, which meet here alone
// A warp's keys are two halves. While one half multiplies, exponentials of the other are taken, or
// its weights of the tile before are turned on their way to shared memory (stmatrix), from where
// TMA stores them, or the warp where rows are not whole pieces of 16 bytes. A row whose L fp32 does
// not hold well is made once more, with e = 2^(c St - m) and m = c max St.
//
// Floor: w once. What binds: no unit alone; all warps of a CTA are in the same phase.
//
// Numerics: all fp32, w is rounded once; the order of sums follows from the number of keys alone.
// NaN and masks are as in attention_weights_forward_kernel.
// Shared memory: 107 KB for eight warps, of which a multiprocessor has two CTAs, 156 KB for twelve,
// 205 KB for 16.
#pragma once

#include "cuda/attention_weights/whole_rows_tiles.cuh"
#include "cuda/parts/stream_order.cuh"

namespace tandem::cuda::attention_weights {

template <class Config>
__global__
__launch_bounds__(Config::kThreads, Config::kCtas) void attention_weights_whole_rows_kernel(
    const __grid_constant__ ForwardParams params) {
  extern __shared__ __align__(1024) char shared_memory[];
  auto& shared = *reinterpret_cast<WholeRowsShared<Config>*>(shared_memory);
  if (threadIdx.x == 0) {
    shared.keys.init(Config::kWarps);
    for (Barrier& full : shared.queries) full.init(1);
    fence_barriers_initialised();
  }
  if (threadIdx.x == 32) {
    prefetch_tensor_map(params.q_map);
    prefetch_tensor_map(params.k_map);
    if constexpr (Config::kPieces) prefetch_tensor_map(params.w_map);
  }
  __syncthreads();
  follow_stream();
  WholeRowsTiles<Config>{params, shared}.run();
}

}  // namespace tandem::cuda::attention_weights
