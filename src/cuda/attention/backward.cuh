// attention_backward_kernel (header comment to come).
#pragma once

#include <cutlass/arch/reg_reconfig.h>

#include "cuda/attention/backward_gradients.cuh"
#include "cuda/attention/backward_sum.cuh"
#include "cuda/parts/stream_order.cuh"

namespace tandem::cuda::attention {

template <class Config>
__global__ __launch_bounds__(Config::kThreads, 1) void attention_backward_kernel(
    const __grid_constant__ AttentionBackwardParams params) {
  extern __shared__ __align__(1024) char shared_memory[];
  auto& shared = *reinterpret_cast<BackwardShared<Config>*>(shared_memory);
  const int warpgroup = __shfl_sync(0xFFFFFFFFu, threadIdx.x / 128, 0);
  if (threadIdx.x == 32) {
    for (const CUtensorMap* map :
         {&params.q_map, &params.k_map, &params.v_map, &params.d_o_map}) {
      prefetch_tensor_map(*map);
    }
  }
  if (threadIdx.x == 0) {
    shared.keys_full.init(1);
    shared.cut_full.init(1);
    shared.queries.init(1, Config::kWorkerWarps);
    shared.gradients.init(1, Config::kWorkerWarps);
    shared.d_scores_empty.init(Config::kWorkerWarps);
    shared.sums.init(Config::kWorkerWarps, 1);
    fence_barriers_initialised();
  }
  follow_stream();
  if (threadIdx.x < 32) {
    int index = 0;
    if (threadIdx.x == 0) index = static_cast<int>(atomicAdd(params.tickets, 1u));
    BackwardItem item;
    item.set(params, Config::kQueries, __shfl_sync(0xFFFFFFFFu, index, 0));
    if (threadIdx.x == 0) shared.item = item;
  }
  __syncthreads();
  if (warpgroup == 0) {
    cutlass::arch::warpgroup_reg_dealloc<Config::kMemoryRegisters>();
    if (threadIdx.x < 32) BackwardLoad<Config>{params, shared}.run();
    if (threadIdx.x == 32) BackwardSum<Config>{params, shared}.run();
  } else {
    cutlass::arch::warpgroup_reg_alloc<Config::kWorkerRegisters>();
    BackwardGradients<Config>{params, shared, warpgroup - 1}.run();
  }
}

}  // namespace tandem::cuda::attention
