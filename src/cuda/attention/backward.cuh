// attention_backward_kernel: dk and dv, and sums for dq, bitwise repeatable.
//
// A CTA stays and takes one block of keys (128, or 64 of wide heads) of a key head after another.
// It walks over the tiles of R queries that see any of them, from the last tile on, each for all
// heads of the group (in windows head by head: BackwardStep), or over a part of them, whose dk and
// dv attention_backward_parts_kernel then adds to those of the others (choose_parts.h). With L the
// row's log-sum-exp in base 2 and delta = o . d_o - d_log_sum_exp, both from
// attention_backward_rows_kernel, per tile:
//   P  = 2^(scale K Qt - L)      [keys, R]   transposed: keys are rows
//   dP = V dOt                   [keys, R]
//   dS = P (.) (dP - delta)      [keys, R]
//   dV += P dO,  dK += dS Q      [keys, dim] in registers
//   dQ  = dSt K                  [R, dim]    added to sums in memory
// attention_backward_queries_kernel rounds scale dQ. Of wide heads dQ is not made here, but by
// attention_backward_wide_queries_kernel, and all about dQ and its sums below does not hold.
//
// Order: floating-point sums depend on it, so key blocks add to a tile of dQ one after the other,
// from the first that sees the tile on. A counter per tile says whose turn it is; the first stores.
// Waiting ends: an item waits only for items of lower numbers, blocks before it of the same head,
// and CTAs take numbers in order (`tickets`), the next one while they work on theirs. The lowest
// number that is not done is therefore under way and waits for nothing, however many CTAs run.
// Blocks that begin together wait for each other at their first tile and then follow at a distance
// of one sum, about a step; later ones find their turn come.
//
// Role        threads       registers  work
//   load        warp 0             24   the next item; K, V, then Q, L and dO, delta through
//                                       two rings; zeroes rows behind a sequence's end
//   sum         warps 1 to 3       24   dQ from shared memory to the sums, in turn: a thread of
//                                       each every third step
//   gradients   2 warpgroups      208   64 keys each: P, dS, dV and dK
//   queries     warpgroup 3        72   dQ of a step, from the dS of both
//
//   gradients 0   =dV==dP==  - dS -   =dK==S next==  - P next -
//   gradients 1     - P -   =dV==dP==  - dS -   =dK==S next==
//   queries       =dQ==== to shared memory
// The two issue products in turn, so that one makes P or dS beside the other's products. Of heads
// wider than 128 registers do not suffice for a third: two warpgroups go step by step, with half of
// dQ each (192 columns of K, 128 of V), or with half of the columns of dK and dV each and half of
// the queries for P and dS, which they exchange (backward_wide_gradients.cuh).
//
// Floor: 10 * keys * queries * dim flops per head. What binds beside the tensor cores is shared
// memory: a step takes 2560 clocks of products and, at dim 64, 2800 of shared memory; at 256 with
// 64 keys, and without dQ, 2048 and 2900.
// Numerics: rounded to 16 bits are P and dS; dS is made from the rounded P.
#pragma once

#include <cutlass/arch/reg_reconfig.h>

#include "cuda/attention/backward_gradients.cuh"
#include "cuda/attention/backward_sum.cuh"
#include "cuda/attention/backward_wide_gradients.cuh"
#include "cuda/parts/stream_order.cuh"

namespace tandem::cuda::attention {

template <class Config>
__global__ __launch_bounds__(Config::kThreads, 1) void attention_backward_kernel(
    const __grid_constant__ AttentionBackwardParams params) {
  extern __shared__ __align__(1024) char shared_memory[];
  auto& shared = *reinterpret_cast<BackwardShared<Config>*>(shared_memory);
  const int warpgroup = __shfl_sync(0xFFFFFFFFu, threadIdx.x / 128, 0);
  if (threadIdx.x == 32) {
    for (const CUtensorMap* map : {&params.q_map, &params.k_map, &params.v_map, &params.d_o_map}) {
      prefetch_tensor_map(*map);
    }
  }
  if (threadIdx.x == 0) {
    shared.item_ring.init(1, Config::kWorkers + Config::kThirdThreads + Config::kSumThreads);
    shared.keys.init(1, Config::kWorkerWarps + Config::kThirdWarps);
    shared.values.init(1, Config::kWorkerWarps);
    shared.rows.init();
    shared.queries.init(1, Config::kWorkers);
    shared.gradients.init(1, Config::kWorkers);
    shared.d_scores.init(Config::kWorkerWarps,
                         Config::kThirdMultiplies ? Config::kThirdWarps : Config::kWorkerWarps);
    shared.sums.init(Config::kThirdMultiplies ? Config::kThirdThreads : Config::kWorkers, 1);
    for (Barrier& begun : shared.begun) begun.init(1);
    fence_barriers_initialised();
  }
  __syncthreads();
  follow_stream_before_own_kernel();
  if (warpgroup == 0) {
    cutlass::arch::warpgroup_reg_dealloc<Config::kMemoryRegisters>();
    const unsigned warp = threadIdx.x / 32;
    if (warp == 0) BackwardLoad<Config>{params, shared}.run();
    if (warp > 0 && warp <= Config::kSumThreads && threadIdx.x % 32 == 0) {
      BackwardSum<Config>{params, shared, warp - 1}.run();
    }
  } else if (warpgroup <= 2) {
    cutlass::arch::warpgroup_reg_alloc<Config::kWorkerRegisters>();
    if constexpr (Config::kThirdMultiplies) {
      BackwardGradients<Config>{params, shared, warpgroup - 1}.run();
    } else {
      BackwardWideGradients<Config>{params, shared, warpgroup - 1}.run();
    }
  } else if constexpr (Config::kThirdMultiplies) {
    cutlass::arch::warpgroup_reg_dealloc<Config::kThirdRegisters>();
    BackwardQueryGradients<Config>{shared}.run();
  }
}

}  // namespace tandem::cuda::attention
