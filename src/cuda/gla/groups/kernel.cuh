// gla_group_gradients_kernel: all gradients of a chunk, over all heads that share q and k.
//
// A launch makes a part of up to 128 columns of K: its dq and dk, and its share of dv and dg, which
// are sums over K. The second part adds its share to the first's: dv's is loaded in 16 bits, where
// the other chunk's v or d_o was. Where a group's heads make several, with the same q and k, each
// leaves dq and dk in fp32 (GroupConfig::kSplit), and gla_sum_heads_kernel adds them up.
//
// With S before a pair of chunks and dS behind it from gla_group_states_kernel, chunks are
// independent. A CTA takes every gridDim.x-th chunk (C = 64 tokens) of a group and goes through its
// members: heads, or 64 columns of V of a head each, which are V below. What they share stays: q,
// k, scale K Qt, and in registers dQ, dK and the sum of the weights Wt. G is the inclusive sum of a
// head's decays, D_ij = 2^(G_i - G_j) for j <= i, f_j the factor from token j to dS
// (docs/ops/gla_backward.md has the derivation). Per member:
//   S or dS between the chunks of the pair, from the one at the far end and the other chunk
//   At_ji = scale D_ij (k_j . q_i)                                  [C,C]
//   dV    = f (K dS) + At dO                                        [C,V]
//   Wt   += scale D_ij (v_j . do_i)                                 [C,C]
//   dK   += (f V) dSt,   dQ += (scale 2^G_i dO) St                  [C,K]
//   dg_t  = F + sum of b before t + sum of a from t on + sum of E_ji over j < t <= i
// with F = 2^G_C <S, dS>, E = scale D (.) (K Qt) (.) (V dOt), all in fp32,
// a = do . (scale 2^G_i Q S), which is q . what dQ has from S, and b = v . f (K dS), which is
// k . what dK has from dS; dg is summed over a head's members. Behind the last one:
//   dK += Wt Q,  dQ += W K
//
// Role       threads          registers  work
//   copies     warp 0, a thread       40   members in, three ahead; dv out
//   decays     warp 1                 40   factors of later members
//              warp 2                 40   dg
//   scores     warpgroup 1           168   At, Wt, E, dv, b
//   gradients  warpgroup 2           192   dQ, dK
//   state      warpgroup 3           112   the state between the chunks, F, a
//
//   scores     =V dOt=K dS= -D, At, E-     =At dO= -b- -dv-
//   gradients  -f V, dO-  =(f V) dSt=dO St=
//   state      -S- =V K=  -round-   =Q S= -F- -a-
// All three wait for a stage; scores and gradients for the state between the chunks; scores for v
// to be read, since dv leaves through it.
//
// Floor: v, do read twice (once from the L2), two states of 2 K V bytes read and dv written, per
// member and 64 tokens. Numerics: rounded to 16 bits are At, the sum of Wt, S, dS and the decayed V
// and dO; of two parts the first's dv, too. Shared memory: 226 KB at 128 columns.
// Code: a multiprocessor's instruction cache holds 32 KB, and behind that schedulers wait for
// instructions; what all roles run per member is about 35 (docs/ops/gla_backward.log.md).
#pragma once

#include <cutlass/arch/reg_reconfig.h>

#include "cuda/gla/groups/gradients.cuh"
#include "cuda/gla/groups/memory.cuh"
#include "cuda/gla/groups/scores.cuh"
#include "cuda/gla/groups/state.cuh"

namespace tandem::cuda::gla {

template <class Config>
__global__ __launch_bounds__(Config::kThreads, 1) void gla_group_gradients_kernel(
    const __grid_constant__ GroupBackwardParams params) {
  extern __shared__ __align__(1024) char shared_memory[];
  auto& shared = *reinterpret_cast<GroupShared<Config>*>(shared_memory);
  const int warpgroup = __shfl_sync(0xFFFFFFFFu, threadIdx.x / 128, 0);
  if (threadIdx.x == 32) {
    for (const CUtensorMap* map : {&params.q_map, &params.k_map, &params.v_map, &params.d_o_map,
                                   &params.dq_map, &params.dk_map, &params.dv_map}) {
      prefetch_tensor_map(*map);
    }
  }
  if (threadIdx.x == 0) {
    constexpr int kRole = Config::kRoleThreads;
    for (int i = 0; i < GroupShared<Config>::kStages; ++i) {
      shared.full[i].init(1 + 32);
      shared.state_made[i].init(kRole);
      shared.earlier[i].init(1);
      shared.values_read[i].init(kRole);
      shared.made[i].init(3 * kRole);
      shared.sums_read[i].init(32);
    }
    shared.left.init(1);
    fence_barriers_initialised();
  }
  __syncthreads();
  if (warpgroup == 0) {
    cutlass::arch::warpgroup_reg_dealloc<Config::kMemoryRegisters>();
    const int warp = __shfl_sync(0xFFFFFFFFu, threadIdx.x / 32, 0);
    // why elected: ptxas then knows that one thread copies, and makes no loop around each copy.
    if (warp == 0 && cute::elect_one_sync()) GroupCopies<Config>{params, shared}.run();
    if (warp == 1) GroupDecays<Config>{params, shared}.run();
    if (warp == 2) GroupDecayGradients<Config>{params, shared}.run();
  } else if (warpgroup == 1) {
    cutlass::arch::warpgroup_reg_alloc<Config::kScoreRegisters>();
    GroupScores<Config>{params, shared}.run();
  } else if (warpgroup == 2) {
    cutlass::arch::warpgroup_reg_alloc<Config::kGradientRegisters>();
    GroupGradients<Config>{params, shared}.run();
  } else {
    cutlass::arch::warpgroup_reg_dealloc<Config::kStateRegisters>();
    GroupState<Config>{params, shared}.run();
  }
}

}  // namespace tandem::cuda::gla
