// gla_reverse_kernel: all gradients of a segment of a head, in one walk from its last token to its
// first.
//
// A CTA walks one segment in chunks of C = 64 tokens. With St before every pair of chunks from
// gla_kept_states_kernel or the forward, G the inclusive sum of a chunk's decays,
// D_ij = 2^(G_i - G_j) for j <= i, and f_j the factor from token j to dS behind the chunk
// (docs/ops/gla_backward.md):
//   At_ji = scale D_ij (k_j . q_i),  Wt_ji = scale D_ij (v_j . do_i)      [C,C]
//   dV    = f (K dS)  + At dO                                             [C,V]
//   dK    = f (V dSt) + Wt Q                                              [C,K]
//   dQ    = scale 2^G_i (dO St) + W K                                     [C,K]
//   dSt   = 2^G_C dSt + (dOt scale 2^G_i) Q      behind the chunk before  [V,K]
// The second chunk of a pair has no St of its own: its dQ takes the pair's, and from the tokens of
// the first chunk, j, what they would have put in: scale 2^G_i 2^(G_C - G_j) (do_i . v_j) k_j.
//   dg_t  = F + sum of b before t + sum of a from t on + sum of E_ji over j < t <= i
// with a = q . and b = k . what comes from the states, and E = scale D (.) (K Qt) (.) (V dOt), all
// in fp32. F, what flows through a chunk, is 2^G_C <S, dS> in a pair's first chunk; what flows out
// of that, F + all b, less all a, is the second's.
//
// Role       threads          registers  work
//   copies     warp 0, a thread       56   chunks in, two ahead; dq and dk out
//   states     warp 2, a thread       56   St in
//   decays     warp 1                 56   factors, dg
//   scores     warpgroup 1           128   At, Wt, E, then dv
//   gradients  warpgroup 2           128   dk, then dq
//   state      warpgroup 3           200   dSt in registers and, rounded, in shared memory; <S, dS>
//
//   scores     -D, mask, E-     =K dS=At dO= -dv-        =next K Qt=V dOt=
//   gradients  =V dSt= -b-      =Wt Q= -dk-  =dO Vt=dO St= -D- =D K= -a- =W K= -dq-
//   state      -round dSt- -<S, dS>- =dOt Q=
// What binds: instructions, of which the scores role has most; its next products run while dv
// leaves.
//
// Floor: q, k, v, do read, dq, dk, dv written, and half a tile of S read, per tensor of the size of
// q. Numerics: rounded to 16 bits are At, Wt, D K's weights, St, dSt and the decayed dO. Shared
// memory: 224 KB.
#pragma once

#include <cutlass/arch/reg_reconfig.h>

#include "cuda/gla/reverse/gradients.cuh"
#include "cuda/gla/reverse/memory.cuh"
#include "cuda/gla/reverse/scores.cuh"
#include "cuda/gla/reverse/state.cuh"

namespace tandem::cuda::gla {

template <class Config>
__global__ __launch_bounds__(Config::kThreads, 1) void gla_reverse_kernel(
    const __grid_constant__ ReverseParams params) {
  extern __shared__ __align__(1024) char shared_memory[];
  auto& shared = *reinterpret_cast<ReverseShared<Config>*>(shared_memory);
  const int warpgroup = __shfl_sync(0xFFFFFFFFu, threadIdx.x / 128, 0);
  if (threadIdx.x == 32) {
    for (const CUtensorMap* map :
         {&params.q_map, &params.k_map, &params.v_map, &params.d_o_map, &params.dq_map,
          &params.dk_map, &params.dv_map, &params.states_map}) {
      prefetch_tensor_map(*map);
    }
  }
  if (threadIdx.x == 0) {
    constexpr int kRole = Config::kRoleThreads;
    for (int i = 0; i < ReverseShared<Config>::kStages; ++i) {
      shared.full[i].init(1 + 32);
      shared.done[i].init(3 * kRole);
      shared.weights_full[i].init(kRole);
      shared.weights_empty[i].init(kRole);
      shared.queries_read[i].init(kRole);
    }
    shared.entry_loaded.init(1);
    shared.entry_read.init(kRole);
    shared.state_loaded.init(1);
    shared.state_empty.init(2 * kRole);
    shared.gradient_full.init(kRole);
    shared.gradient_empty.init(2 * kRole);
    fence_barriers_initialised();
  }
  if (params.saved_states) follow_stream();  // else the kernel that makes the states did
  __syncthreads();
  const ReverseHead head(params);
  if (warpgroup == 0) {
    cutlass::arch::warpgroup_reg_dealloc<Config::kMemoryRegisters>();
    const int warp = threadIdx.x / 32;
    if (threadIdx.x == 0) ReverseCopies<Config>{params, shared, head}.run();
    if (warp == 1) ReverseDecays<Config>{params, shared, head}.run();
    if (threadIdx.x == 64) ReverseStates<Config>{params, shared, head}.run();
  } else if (warpgroup == 1) {
    cutlass::arch::warpgroup_reg_alloc<Config::kScoreRegisters>();
    ReverseScores<Config>{params, shared, head}.run();
  } else if (warpgroup == 2) {
    cutlass::arch::warpgroup_reg_alloc<Config::kGradientRegisters>();
    ReverseGradients<Config>{params, shared, head}.run();
  } else {
    cutlass::arch::warpgroup_reg_alloc<Config::kStateRegisters>();
    ReverseState<Config>{params, shared, head}.run();
  }
}

}  // namespace tandem::cuda::gla
