// gla_chunk_gradients_kernel: all gradients, a pair of chunks (128 tokens of one head) at a time.
//
// With S before a pair from gla_chunk_states_kernel and dS behind it, from there too or, in one
// reverse walk (`kReverse`), from the pair before, first the states between the two chunks:
//   S  = 2^G_C S + (V 2^(G_C - G_j))^T K of the first chunk,  dS from q and do of the second
// (in the walk's second segment of two, S += factor from its begin * S there before, or dS so).
// Then each chunk of C = 64 tokens, G being the inclusive sum of its decays, D_ij = 2^(G_i - G_j)
// for j <= i, f_j the factor from token j to dS (docs/ops/gla_backward.md has the derivation):
//   At_ji = scale D_ij (k_j . q_i)                          [C,C]
//   Wt_ji = scale D_ij (v_j . do_i)                         [C,C]
//   dV    = f (K dS)    + At dO                             [C,V]
//   dK    = f (V dS^T)  + Wt Q                              [C,K]
//   dQ    = scale 2^G_i (dO S^T) + W K                      [C,K]
//   dg_t  = F + sum of b before t + sum of a - c from t on,  F = 2^G_C <S, dS>, a = q . dq,
//           b and c = k . the two parts of dk, all in fp32 (decay/row_sums.h)
// At is a register operand of its second product, Wt a panel of both of its own, so that dQ and dK
// use the same rounded weights and a cancels against c to the last bit.
//
// A CTA takes every gridDim.x-th pair; in one reverse walk every gridDim.x-th head, its pairs from
// the last to the first.
//
// Role       threads       registers  work (registers in one reverse walk in brackets)
//   copies   warp 0, a thread  56 (48)  in and out by TMA, two pairs ahead
//   decays   warp 1            56 (48)  factors of later pairs, dg
//   products warpgroups 1, 2 184 (176)  a chunk of the pair each
//   states   warpgroup 3      88 (112)  the next pair's states; dS from pair to pair
//
//   copies    ~in: n+1~            ~out: n-1, in: n+1~
//   decays                         -dg of n-1, factors of n+1-
//   states    n+1:       -dO q=dO q=-  -V k=V k=-
//   tensor    =K Qt=V dOt=         =K dS=V dSt=Wt Q=dO St=  =At dO==W K=
//   products                -D, mask-        -F-                -scale, b, c, dk-  -a, dv, dq-
// products wait for a stage's `inputs` (q, k, v, do, decays) and `all_states`; states for `inputs`
// and `states`; the others for `made` before they go on to the next. The first pair's inputs are
// loaded while gla_chunk_states_kernel may still run.
//
// Floor: q, k, v, do read, dq, dk, dv written, and two panels of 8 KB read (one in one reverse
// walk), per pair. Numerics: as the walks', but for states between the chunks of a pair, which are
// rounded twice where both ends are read, and those of a second segment, which are sums of two
// rounded ones. Shared memory: 220 KB.
#pragma once

#include <cutlass/arch/reg_reconfig.h>

#include "cuda/gla/chunks/memory.cuh"
#include "cuda/gla/chunks/products.cuh"
#include "cuda/gla/chunks/state.cuh"

namespace tandem::cuda::gla {

template <class Config>
__global__ __launch_bounds__(Config::kThreads, 1) void gla_chunk_gradients_kernel(
    const __grid_constant__ ChunkBackwardParams params) {
  extern __shared__ __align__(1024) char shared_memory[];
  auto& shared = *reinterpret_cast<ChunkGradientsShared*>(shared_memory);
  const int warpgroup = __shfl_sync(0xFFFFFFFFu, threadIdx.x / 128, 0);
  if (threadIdx.x == 32) {
    for (const CUtensorMap* map :
         {&params.q_map, &params.k_map, &params.v_map, &params.d_o_map, &params.dq_map,
          &params.dk_map, &params.dv_map, &params.states_map}) {
      prefetch_tensor_map(*map);
    }
  }
  if (threadIdx.x == 0) {
    for (auto& stage : shared.stages) {
      stage.inputs.init(1 + 32);
      stage.states.init(1);
      stage.all_states.init(Config::kStates);
      stage.made.init(Config::kProducts);
    }
    fence_barriers_initialised();
  }
  // Else the kernel that makes states did.
  if (Config::kReverse && params.saved_states) follow_stream();
  __syncthreads();
  if (warpgroup == 0) {
    cutlass::arch::warpgroup_reg_dealloc<Config::kMemoryRegisters>();
    if (threadIdx.x == 0) ChunkCopies<Config>{params, shared}.run();
    if (threadIdx.x / 32 == 1) ChunkDecays<Config>{params, shared}.run();
  } else if (warpgroup == 3) {
    cutlass::arch::warpgroup_reg_dealloc<Config::kStateRegisters>();
    ChunkState<Config>{params, shared}.run();
  } else {
    cutlass::arch::warpgroup_reg_alloc<Config::kProductRegisters>();
    ChunkProducts<Config>{params, shared, warpgroup - 1}.run();
  }
}

}  // namespace tandem::cuda::gla
