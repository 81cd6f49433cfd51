// attention_forward_kernel: o = softmax(scale q kt + mask) v, and the log-sum-exp.
//
// A CTA stays and takes one tile of queries of one head after another (forward_items.cuh). It walks
// the blocks of keys that any of its queries sees, from the last to the first, with S and O in
// registers. Per block, with c = scale log2 e:
//   S = Q Kt,  -inf where a query does not see a key
//   m'        c max_j S where that is more than 8 above m, else m (forward_softmax.cuh)
//   P = 2^(c S - m'),  l = 2^(m - m') l + sum_j P,  O = 2^(m - m') O + P V
// and at the end o = O / l, the log-sum-exp is ln 2 (m + log2 l).
//
// Role   threads                        registers  work
//   load   warp 0, a lane                40 (32)   q, k and v by TMA
//   rows   warpgroups 1 to 2 (3)       232 (160)   64 queries each: products, softmax, results
// Two warpgroups, or three at D = 64, where registers allow it. They take turns at the tensor
// cores, and each has S of its next block made before the weights of this one are multiplied:
//
//   rows 0  =S 1=PV 0= - softmax 1 -         =S 2=PV 1= - softmax 2 -
//   rows 1            =S 1=PV 0= - softmax 1 -         =S 2=PV 1=
// What binds: at D = 128 and above the tensor cores, and the power that they take; at 64 one
// exponential costs as much time as the 256 flops that go with it, and so do the instructions
// around it. Wider than 128 no turns: products are long beside the softmax.
//
// Masks cost three instructions an element, in blocks that a border crosses alone. A warpgroup
// goes past blocks that only others see. The last block ends with the sequence's last key; values
// behind that of a sequence shorter than a block are zeroed in shared memory: they may be anything,
// and 0 * NaN is NaN. A query that sees no key gets 0 and -inf.
//
// Floor: 2 (K + V) flops for each pair of a query and a key that it sees. Numerics: rounded to 16
// bits are P and o; sums of P are of fp32 values. A NaN in q stays in its row, one in k
// reaches the rows that see it, one in v those whose warpgroup has a row that sees its block.
// Repeatable: a tile's sums have one order. Shared memory: 88 KB at D = 64, 160 KB at 128, 224 KB
// at 256.
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
