// linear_scan_forward_kernel
#pragma once

#include <cutlass/arch/reg_reconfig.h>

#include "cuda/linear_scan/forward_config.h"
#include "cuda/linear_scan/forward_load.cuh"
#include "cuda/linear_scan/forward_scan.cuh"
#include "cuda/parts/stream_order.cuh"
#include "cuda/runtime/launch.h"

namespace tandem::cuda {

template <class Config>
__global__ __launch_bounds__(Config::kThreads, Config::kCtasPerSm) void linear_scan_forward_kernel(
    const __grid_constant__ LinearScanForwardParams params) {
  extern __shared__ __align__(1024) char shared_memory[];
  auto& shared = *reinterpret_cast<LinearScanShared<Config>*>(shared_memory);
  const int warpgroup = __shfl_sync(0xFFFFFFFFu, threadIdx.x / 128, 0);
  const int warp = __shfl_sync(0xFFFFFFFFu, threadIdx.x / 32, 0);

  if (threadIdx.x == 0) {
    constexpr int kScanThreads = 128 * Config::kGroups;
    shared.ring.init(params.tma ? 1 : kLinearScanCopyThreads, kScanThreads);
    shared.ticket_ring.init(1, 1);
    shared.tile_ring.init(32, kScanThreads);
    fence_barriers_initialised();
  }
  follow_stream();
  __syncthreads();

  if (warpgroup == 0) {
    cutlass::arch::warpgroup_reg_dealloc<Config::kLoadRegisters>();
    if (warp == 0) {
      if (threadIdx.x == 0) {
        if (params.tma) {
          load_with_tma<Config>(params, shared);
        } else {
          take_tickets<Config>(params, shared);
        }
      }
    } else if (warp == 1) {
      look_at_tokens<Config>(params, shared);
      pass_empty_sequences<Config>(params.problem);
    } else if (!params.tma) {
      load_with_threads<Config>(params, shared);
    }
  } else {
    cutlass::arch::warpgroup_reg_alloc<Config::kScanRegisters>();
    scan_tiles<Config>(params, shared, warpgroup - 1);
  }
}

template <class Config>
void launch_linear_scan_forward(const char* name, const LinearScanForwardParams& params,
                                unsigned blocks, void* stream) {
  static_assert(sizeof(LinearScanShared<Config>) <= Config::kSharedLimit);
  launch_kernel(name, linear_scan_forward_kernel<Config>,
                {.blocks = blocks,
                 .threads = Config::kThreads,
                 .shared_bytes = sizeof(LinearScanShared<Config>)},
                static_cast<cudaStream_t>(stream), params);
}

}  // namespace tandem::cuda
