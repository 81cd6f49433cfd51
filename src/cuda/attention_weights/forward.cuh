// attention_weights_forward_kernel: w = softmax(scale q kt + mask), in memory.
//
// A CTA has a strip of queries of one head. Each of its four warpgroups takes tiles of 64 of them,
// one in each turn, and goes through the keys twice for each, block by block, with
// c = scale log2 e (the softmax is attention's, cuda/attention/forward_softmax.cuh):
//   sums      S = Q Kt,  m = c max_j S,  l = sum_j 2^(c S - m); of the last block also the weights
//   weights   S = Q Kt,  w = 2^(c S - m) / l, rounded and stored; zeros behind what the tile sees
// Scores are made twice because they do not fit: 64 rows of 1024 keys are all registers of a
// multiprocessor.
//
// All warpgroups follow one stream of keys, as far apart as its stages allow. A block's two halves
// are products of their own: while one half's exponentials are taken, the other half multiplies.
//
// Role   threads                  registers  work
//   load   one                           24  q and k by TMA
//   rows   warpgroups 1 to 4            112  64 queries each: products, softmax, stores
// Weights leave through a warp's own part of shared memory, as whole rows of a block.
//
// What binds: waiting, for products and for exponentials, of which each weight has two, by the four
// warps that a scheduler has registers for.
//
// Floor: w once. Numerics: all fp32, w is rounded once; the logarithm of a row's sum is part of its
// weights' exponent, and what rounding takes from that a factor where it may be seen, so that their
// sum misses 1 by their own roundings. A NaN in q stays in its row, one in k reaches the rows that
// see it. Weights that a query does not see are 0, also then. Nothing is added up across
// warpgroups: how queries are cut into strips leaves bits alone.
// Shared memory: 192 KB at 64 and 128 columns, 224 KB at 256.
#pragma once

#include <cutlass/arch/reg_reconfig.h>

#include "cuda/attention_weights/forward_load.cuh"
#include "cuda/attention_weights/forward_rows.cuh"
#include "cuda/parts/stream_order.cuh"

namespace tandem::cuda::attention_weights {

template <class Config>
__global__ __launch_bounds__(Config::kThreads, 1) void attention_weights_forward_kernel(
    const __grid_constant__ ForwardParams params) {
  extern __shared__ __align__(1024) char shared_memory[];
  auto& shared = *reinterpret_cast<ForwardShared<Config>*>(shared_memory);
  const int warpgroup = __shfl_sync(0xFFFFFFFFu, threadIdx.x / 128, 0);
  if (threadIdx.x == 0) {
    shared.keys.init(1, 128 * Config::kGroups);
    for (auto& ring : shared.queries) ring.init(1, 128);
    fence_barriers_initialised();
    shared.strip = ForwardStrip<Config>(params, static_cast<int>(blockIdx.x));
  }
  if (threadIdx.x == 32) {
    prefetch_tensor_map(params.q_map);
    prefetch_tensor_map(params.k_map);
  }
  __syncthreads();
  follow_stream();
  if (warpgroup == 0) {
    cutlass::arch::warpgroup_reg_dealloc<Config::kLoadRegisters>();
    if (threadIdx.x == 0) ForwardLoad<Config>{params, shared}.run();
  } else {
    cutlass::arch::warpgroup_reg_alloc<Config::kRowRegisters>();
    ForwardRows<Config>{params, shared, warpgroup - 1}.run();
  }
}

}  // namespace tandem::cuda::attention_weights
