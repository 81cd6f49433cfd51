// attention_forward_kernel: o = softmax(scale q kt + mask) v, and the log-sum-exp.
#pragma once

#include <cutlass/arch/reg_reconfig.h>

#include "cuda/attention/forward_load.cuh"
#include "cuda/attention/forward_rows.cuh"
#include "cuda/parts/stream_order.cuh"

namespace tandem::cuda::attention {

template <class Config>
__global__ __launch_bounds__(Config::kThreads, 1) void attention_forward_kernel(
    const __grid_constant__ AttentionForwardParams params) {
  extern __shared__ __align__(1024) char shared_memory[];
  auto& shared = *reinterpret_cast<ForwardShared<Config>*>(shared_memory);
  const int warp = __shfl_sync(0xFFFFFFFFu, threadIdx.x / 32, 0);
  const int warpgroup = warp / 4;
  if (threadIdx.x == 0) {
    constexpr int kRowThreads = 128 * Config::kGroups;
    shared.keys.init(1, kRowThreads);
    shared.values.init(1, kRowThreads);
    for (Ring<1>& ring : shared.queries) ring.init(1, 128);
    shared.item_ring.init(1, kRowThreads);
    fence_barriers_initialised();
  }
  if (threadIdx.x == 32) {
    for (const CUtensorMap* map : {&params.q_map, &params.k_map, &params.v_map}) {
      prefetch_tensor_map(*map);
    }
  }
  __syncthreads();
  follow_stream();
  if (warpgroup == 0) {
    cutlass::arch::warpgroup_reg_dealloc<Config::kLoadRegisters>();
    if (warp == 0) ForwardLoad<Config>{params, shared}.run();
  } else {
    cutlass::arch::warpgroup_reg_alloc<Config::kRowRegisters>();
    ForwardRows<Config>{params, shared, warpgroup - 1}.run();
  }
}

}  // namespace tandem::cuda::attention
