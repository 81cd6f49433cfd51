// gla_walk_kernel: chunkwise gated linear attention with a scalar decay.
//
// A CTA walks items, each the tokens of one (sequence, head) for 64 or 128 columns of V, in chunks
// of C = 64 tokens, and keeps the state transposed, St [V,K], in fp32 registers. Per chunk, with G
// the inclusive sum of its decays (parts/decay.cuh):
//   P_ij = scale * 2^(G_i - G_j) * (q_i . k_j), j <= i     [C,C]   intra role
//   Ot   = St Qt * scale 2^G_i + Vt Pt                     [V,C]   state role
//   St   = 2^G_C St + (Vt 2^(G_C - G_j)) K                 [V,K]   state role
// With the state transposed, St and Vt are register operands of wgmma, and columns of V are
// independent: each 64 of them belong to one state warpgroup, which never talks to another.
// Few heads (Config::kSplit): an item is a segment of a sequence, see segments.cuh. Grouped heads
// (Config::kHeads): an item is two heads of 64 columns of V, a state warpgroup each, with one Q Kt
// and a P by each one's decays.
// A backward (Config's Walk) is this walk over other tensors, for dk and dv from the last token to
// the first: gla/backward.cpp. One that makes both: key_value.cuh.
//
// Role    threads                    registers  work
//   load  warp 0, one thread             32-40  q, k, v of later chunks by TMA (2-6 stages)
//         warp 1                                decay factors of later chunks (warp 2: second head)
//         warp 3, one thread                    the next items (4 slots)
//   intra warpgroup 1                   64-128  Q Kt, decay, mask -> P (1-2 slots)
//   state warpgroup 2; 3 if V > 64     192-256  Ot, St; o through shared memory and TMA
// Where TMA cannot read a tensor, warps 0 and 2 copy. Shared memory: 182 KB at K = V = 64, 195 KB
// at 128, 215 KB with two heads, 170 KB at K = 256 and 64 columns of V, 212 to 221 KB at 128.
//
// Time chart; '=' tensor cores, '-' arithmetic, '~' asynchronous copies:
//   load    ~~~ chunk n+2 ~~~  ~~~ chunk n+3 ~~~
//   intra   =Q Kt (n+1)= -decay, mask-  =Q Kt (n+2)= -decay, mask-
//   state   -St to bf16- =St Qt= =Vt Pt= =V K=, under the first two V is decayed, under the third o
//           is scaled and stored
// load waits for input.empty and arrives on input.full; intra waits for input.full and intra.empty
// and arrives on intra.full; state waits for both full and arrives on both empty. Only the state
// role is serial in time. Two of a forward take turns up to K = 128 (recurrence.cuh): one's
// arithmetic runs under the other's wgmma. At K = 256 two chunks of inputs fit and P is late: St Qt
// goes before it.
//
// Floor: q, k, v read and o written once, (2 HQ K + 2 H V) * 2 bytes per token, and
// 2 C (C K + 2 K V + C V) flops per chunk, half of that time at K = V = 128 on an H200.
// Numerics: decays, state and both parts of o are fp32. Rounded to 16 bits, once each: P, St as
// operand of St Qt, the decayed V, and o. 2^x by ex2.approx (2 ulp).
// Limits: K <= 256. q and k are read again, through the L2, for each tile of V.
#pragma once

#include <cutlass/arch/reg_reconfig.h>

#include "cuda/gla/walk/intra.cuh"
#include "cuda/gla/walk/items.cuh"
#include "cuda/gla/walk/load.cuh"
#include "cuda/gla/walk/recurrence.cuh"
#include "cuda/parts/stream_order.cuh"
#include "cuda/runtime/launch.h"
#include "cuda/runtime/plan.h"

namespace tandem::cuda::gla {

template <class Config>
__global__ __launch_bounds__(Config::kThreads,
                             1) void gla_walk_kernel(const __grid_constant__ WalkParams params) {
  extern __shared__ __align__(1024) char shared_memory[];
  auto& shared = *reinterpret_cast<WalkShared<Config>*>(shared_memory);
  const int warpgroup = __shfl_sync(0xFFFFFFFFu, threadIdx.x / 128, 0);
  const int warp = __shfl_sync(0xFFFFFFFFu, threadIdx.x / 32, 0);

  if (params.tma && threadIdx.x == 32) {
    for (const CUtensorMap* map : {&params.q_map, &params.k_map, &params.v_map, &params.o_map}) {
      prefetch_tensor_map(*map);
    }
    if (Config::kSavesStates && params.saves_by_tma) prefetch_tensor_map(params.states_map);
  }
  if (threadIdx.x == 0) {
    constexpr int kStateThreads = 128 * Config::kStateWarpgroups;
    constexpr int kDecayThreads = 32 * Config::kHeads;
    const int copying_threads = params.tma ? 1 : kGatherThreads;
    shared.item_ring.init(1, copying_threads + kDecayThreads + 128 + kStateThreads);
    shared.input.init(copying_threads + kDecayThreads,
                      kStateThreads + (Config::kWithValue ? 128 : 0));
    shared.intra.init(128, kStateThreads);
    if constexpr (Config::kWithValue) shared.value.ring.init(kStateThreads, 128);
    if constexpr (Config::kSplit) shared.segment.read.init(kStateThreads);
    if constexpr (Config::kRowSums) {
      for (auto& of_slot : shared.row_sums.places) {
        for (auto& place : of_slot) place.tokens = 0;
      }
    }
    fence_barriers_initialised();
  }
  const bool schedules = warp == 3 && threadIdx.x % 32 == 0;
  if (schedules) place_first_item(params, shared);
  if (!params.beside_walk) follow_stream();
  __syncthreads();
  if constexpr (Config::kSplit) find_entry(params, shared);

  if (warpgroup == 0) {
    cutlass::arch::warpgroup_reg_dealloc<Config::kLoadRegisters>();
    if (warp == 3) {
      if (schedules) schedule_items(params, shared);
    } else if (warp == 1) {
      prepare_decay(params, shared, 0);
    } else if (Config::kHeads > 1 && warp == 2) {
      prepare_decay(params, shared, Config::kHeads - 1);
    } else if (!params.tma) {
      load_with_threads(params, shared);
    } else if (threadIdx.x == 0) {
      load_with_tma(params, shared);
    }
  } else if (warpgroup == 1) {
    cutlass::arch::warpgroup_reg_dealloc<Config::kIntraRegisters>();
    run_intra(params, shared);
  } else {
    cutlass::arch::warpgroup_reg_alloc<Config::kStateRegisters>();
    // why computed again: held from the kernel's begin, it would be spilled.
    const int own = Config::kWithValue ? __shfl_sync(0xFFFFFFFFu, threadIdx.x / 128, 0) : warpgroup;
    run_state(params, shared, own - 2);
  }
  // why these warps: they end last, and a waiting lane would stop its warp's others.
  if constexpr (!Config::kWithValue) {
    if (params.beside_walk && blockIdx.x == 0 && warpgroup >= 2) follow_stream();
  }
}

template <class Config>
void launch_walk(const char* name, const WalkParams& params, unsigned blocks, void* stream) {
  static_assert(sizeof(WalkShared<Config>) <= kSharedMemoryPerBlock);
  launch_kernel(
      name, gla_walk_kernel<Config>,
      {.blocks = blocks, .threads = Config::kThreads, .shared_bytes = sizeof(WalkShared<Config>)},
      static_cast<cudaStream_t>(stream), params);
}

}  // namespace tandem::cuda::gla
