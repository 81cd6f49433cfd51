// gla_wide_gradients_kernel: 128 rows of dq, dk or dv, as many columns of them as K has (128 or
// 256), from the states at both ends of their span of 256 tokens and the span's other tokens.
//
// G is the inclusive sum of a head's decays, D_ij = 2^(G_i - G_j) for j <= i, both in the span, e_i
// the factor from S before it to token i, f_j the one from token j to dS behind it
// (docs/ops/gla_backward.md has the derivation). Each gradient is what rows have from a state and
// from pairs of tokens:
//   dq_i = scale e_i (do_i St) + sum_{j<=i} scale D_ij (do_i . v_j) k_j
//   dk_j = f_j (v_j dSt)       + sum_{i>=j} scale D_ij (v_j . do_i) q_i
//   dv_j = f_j (k_j dS)        + sum_{i>=j} scale D_ij (k_j . q_i) do_i
// so a CTA takes rows of one of them at a time; those of the same tokens are neighbours, and read
// the same from the L2. Row sums for d_log_decay, q . dq, k . dk and k . (f v dSt), are taken from
// fp32 accumulators; dq and dk round the same weights.
//
// Role   threads           registers  work
//   load   warp 0, a thread       24  rows and tokens of later steps, tiles and partners of later
//                                     items, into six slots of 32 KB
//          warp 1, a thread       24  steps of the state, each behind one of rows; decays
//   rows   warpgroups 1, 2       240  64 rows each, up to 128 and 64 accumulators a thread
//
//   load   ~ step, state, step, ... ~  ~ tile ~  ~ step, ... ~  ~ tile ~
//   rows   =rows S, rows Xt=    -e, D-  =W Y=    =rows Xt=   -D-  =W Y=   -sums-  -round, store-
// X are the tokens that rows are paired with, W their weights, Y the tile of these tokens; row sums
// take a partner, k or q of the rows. A gradient leaves through its item's last slots. Shared
// memory: 198 KB.
//
// Floor: q, k, v, do and both states read once, dq, dk, dv written. Numerics: rounded to 16 bits
// are weights, S and dS.
#pragma once

#include <cutlass/arch/reg_reconfig.h>

#include "cuda/gla/wide/memory.cuh"
#include "cuda/gla/wide/rows.cuh"
#include "cuda/parts/stream_order.cuh"

namespace tandem::cuda::gla {

template <class Config>
__global__ __launch_bounds__(Config::kThreads, 1) void gla_wide_gradients_kernel(
    const __grid_constant__ WideBackwardParams params) {
  extern __shared__ __align__(1024) char shared_memory[];
  auto& shared = *reinterpret_cast<WideShared<Config>*>(shared_memory);
  const int warpgroup = __shfl_sync(0xFFFFFFFFu, threadIdx.x / 128, 0);
  if (threadIdx.x == 32) {
    for (const CUtensorMap* map : {&params.q_map, &params.k_map, &params.v_map, &params.d_o_map,
                                   &params.dq_map, &params.dk_map, &params.dv_map}) {
      prefetch_tensor_map(*map);
    }
  }
  if (threadIdx.x == 0) {
    shared.ring.init(1, 2);
    shared.decays.init(1, 2);
    fence_barriers_initialised();
  }
  follow_stream();
  __syncthreads();
  if (warpgroup == 0) {
    cutlass::arch::warpgroup_reg_dealloc<Config::kMemoryRegisters>();
    if (threadIdx.x == 0) {
      WidePanels<Config>{params, shared}.run();
    } else if (threadIdx.x == 32) {
      WideStates<Config>{params, shared}.run();
    }
  } else {
    cutlass::arch::warpgroup_reg_alloc<Config::kRowsRegisters>();
    WideRows<Config>{params, shared, warpgroup - 1}.run();
  }
}

}  // namespace tandem::cuda::gla
