// attention_weights_forward_kernel: w = softmax(scale q kt + mask), in memory.
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
