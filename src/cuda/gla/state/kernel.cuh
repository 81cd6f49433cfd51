// gla_state_kernel: what a span of tokens adds to the state, and its total log-decay.
//
//   S = sum_t exp(g_{t+1} + ... + g_last) k_t v_t^T        [K,V]
//
// One CTA walks one segment of one (sequence, head) for a tile of S, kept transposed in fp32
// registers (gla_walk_kernel says why), from the last chunk of 64 tokens to the first: span.cuh
// has the loop. For the segments of a backward gla_segment_states_kernel does so in both
// directions, as far as decays remember.
//
// Role    threads                    work
//   load  warp 0, one thread         k, v of later chunks by TMA (6 stages)
//         warp 1                     decay factors of later chunks, the total
//         warps 0 and 2              copy instead where TMA cannot read
//   state warpgroup 1; 2 if V > 64   A, St
// Shared memory: 99 KB at 64 x 64, 195 KB at 128 x 128. Registers: what 2 or 3 warpgroups leave.
//
//   load  ~~~ chunk n+5 ~~~   ~~~ chunk n+6 ~~~
//   state -decay V- =V K= -add-  -decay V- =V K= -add-       the two warpgroups drift apart
// load waits for input.empty and arrives on input.full; state the other way round.
//
// Floor: k, v and the decay read once: (HQ K + H V) * 2 bytes per token, 2 K V flops per token and
// head. Numerics: decays, products and S fp32; the decayed V is rounded once to 16 bits.
// Limits: a tile of S per CTA: wider K or V are several, which read k or v again through the L2.
#pragma once

#include <cutlass/arch/reg_reconfig.h>

#include <algorithm>

#include "cuda/gla/common/decay_stream.cuh"
#include "cuda/gla/common/remembered.cuh"
#include "cuda/gla/common/span.cuh"
#include "cuda/gla/common/tiles.cuh"
#include "cuda/gla/state/config.h"
#include "cuda/gla/state/params.h"
#include "cuda/parts/ring.cuh"
#include "cuda/parts/stream_order.cuh"
#include "cuda/runtime/launch.h"
#include "cuda/runtime/plan.h"

namespace tandem::cuda::gla {

template <class Config>
struct StateShared {
  struct Stage {
    alignas(1024) char k[Config::kKeyBytes];    // [C,K]
    alignas(1024) char v[Config::kValueBytes];  // [C,V]
  };
  using InputRing = Ring<Config::kStages>;

  Stage stages[Config::kStages];
  ChunkDecay<Config::kChunk> decay[Config::kStages];
  typename DecayStream<Config::kReverse>::Buffer log_decays;
  DecaySumsShared<Config::kThreads, 1> decay_sums;
  int remembered;  // chunks
  InputRing input;

  __device__ const ChunkDecay<Config::kChunk>& decay_of(int stage, int) const {
    return decay[stage];
  }
};

/// The tile of a segment's state that a CTA makes.
struct StateItem {
  Item item;  // final_state: of the segment
  int first_key;
  std::int64_t segment_index;  // into [N,H,segments]
  int segment;
  bool whole = true;  // else the state before the item's tokens is forgotten
};

/// Keeps the chunks that the state behind the segment depends on. All threads of the CTA.
template <class Config>
__device__ void keep_remembered(const DecayTensor& decay, StateShared<Config>& shared,
                                StateItem& found) {
  Item& item = found.item;
  const int chunks = item.chunks<Config>();
  constexpr int kFirst = 32 * DecaySumsShared<Config::kThreads, 1>::kFirstWarp;
  if (threadIdx.x >= kFirst) {
    int remembered[1];
    find_remembered<Config>(shared.decay_sums, decay, item, item.head, {{chunks - 1, chunks}},
                            false, remembered);
    if (threadIdx.x == kFirst) shared.remembered = remembered[0];
  }
  __syncthreads();
  const int count = shared.remembered;
  found.whole = count == chunks;
  keep_chunks<Config>(item, Config::kReverse ? 0 : chunks - count,
                      Config::kReverse ? count : chunks);
}

template <class Config>
__device__ StateItem find_state_item(const StateParams& params) {
  const GlaRecurrence& problem = params.problem;
  const int key_tiles = (problem.K + Config::kKeyDim - 1) / Config::kKeyDim;
  const int value_tiles = (problem.V + Config::kValueDim - 1) / Config::kValueDim;
  StateItem found;
  std::int64_t index = blockIdx.x;
  found.first_key = static_cast<int>(index % key_tiles) * Config::kKeyDim;
  index /= key_tiles;
  found.item.first_column = static_cast<int>(index % value_tiles) * Config::kValueDim;
  index /= value_tiles;
  found.item.head = static_cast<int>(index % problem.H);
  index /= problem.H;
  const std::int64_t n = index % problem.N;
  const int segment = found.segment = static_cast<int>(index / problem.N);
  set_sequence(found.item, problem, n);
  if (params.segment_chunks > 0) {
    keep_chunks<Config>(found.item, segment * params.segment_chunks,
                        (segment + 1) * params.segment_chunks);
  } else {
    keep_segment<Config>(found.item, segment, params.segments, false);
  }
  found.segment_index = (n * problem.H + found.item.head) * params.segments + segment;
  found.item.final_state =
      params.states + (found.segment_index + params.shift) * (std::int64_t{problem.K} * problem.V);
  return found;
}

template <class Config>
__device__ void load_span_with_tma(const StateParams& params, StateShared<Config>& shared,
                                   const StateItem& found) {
  const Item& item = found.item;
  const int query_head = item.head / (params.problem.H / params.problem.HQ);
  typename StateShared<Config>::InputRing::Position at;
  for (int chunk = item.chunks<Config>() - 1; chunk >= 0; --chunk, at.advance()) {
    const int time = item.chunk_begin<Config>(chunk);
    auto& stage = shared.stages[at.stage];
    Barrier& full = shared.input.full[at.stage];
    shared.input.wait_empty(at);
    full.arrive_and_expect(Config::kStageBytes);
    load_tile(params.k_map, full, stage.k, Config::kKeyDim,
              {found.first_key, query_head, time, item.batch});
    load_tile(params.v_map, full, stage.v, Config::kValueDim,
              {item.first_column, item.head, time, item.batch});
  }
}

template <class Config>
__device__ void load_span_with_threads(const StateParams& params, StateShared<Config>& shared,
                                       const StateItem& found) {
  using Element = typename Config::Element;
  const GlaRecurrence& problem = params.problem;
  const Item& item = found.item;
  const TileCoordinate keys{found.first_key, item.head / (problem.H / problem.HQ), 0, item.batch};
  const TileCoordinate values{item.first_column, item.head, 0, item.batch};
  typename StateShared<Config>::InputRing::Position at;
  for (int chunk = item.chunks<Config>() - 1; chunk >= 0; --chunk, at.advance()) {
    const int time = item.chunk_begin<Config>(chunk);
    const int rows = item.valid_tokens<Config>(chunk);
    auto& stage = shared.stages[at.stage];
    shared.input.wait_empty(at);
    gather_tile<Element>(stage.k, Config::kKeyDim, problem.k, problem.K, rows, keys, time);
    gather_tile<Element>(stage.v, Config::kValueDim, problem.v, problem.V, rows, values, time);
    fence_shared_for_async_proxy();
    shared.input.full[at.stage].arrive();
  }
}

/// Makes the factors of each chunk, and the sum of all decays. All lanes of one warp.
template <class Config>
__device__ void prepare_span_decay(const StateParams& params, StateShared<Config>& shared,
                                   const StateItem& found) {
  const Item& item = found.item;
  float total = found.whole ? 0.0f : -INFINITY;
  const int last = item.chunks<Config>() - 1;
  DecayStream<Config::kReverse> decays(shared.log_decays, params.problem.log_decay, item,
                                       item.length, item.chunk_offset<Config>(last),
                                       Config::kReverse ? 1 : -1);
  typename StateShared<Config>::InputRing::Position at;
  for (int chunk = last; chunk >= 0; --chunk, at.advance()) {
    const LogDecays log_decay = decays.next();
    shared.input.wait_empty(at);
    compute_chunk_decay<Config::kReverse>(log_decay, params.scale, shared.decay[at.stage]);
    shared.input.full[at.stage].arrive();
    total += forget_to_infinity(log_decay.own.x) + forget_to_infinity(log_decay.own.y);
  }
#pragma unroll
  for (int distance = 16; distance > 0; distance /= 2) {
    total += __shfl_xor_sync(0xFFFFFFFFu, total, distance);
  }
  const bool writes = found.segment >= params.first_total && threadIdx.x % 32 == 0 &&
                      found.first_key == 0 && item.first_column == 0;
  if (writes) params.total_log_decay[found.segment_index] = total;
}

template <class Config>
__device__ void accumulate_span(const StateParams& params, StateShared<Config>& shared,
                                const StateItem& found, int warpgroup) {
  const Item& item = found.item;
  float state[1][Config::kKeyDim / 2] = {};  // St, rows first_column + 64*warpgroup + [0,64)
  typename StateShared<Config>::InputRing::Position at;
  const int chunks = item.chunks<Config>();
  sum_span<Config, Config::kKeyDim>(
      state, shared, chunks - 1, chunks, warpgroup, at, [&](auto& stage, int chunk) {
        const int valid = item.valid_tokens<Config>(chunk);
        if (params.problem.cu_seqlens != nullptr && valid < Config::kChunk) {
          clear_partial_chunk<Config>(stage, valid, warpgroup);
        }
      });
  if constexpr (Config::kReverse) {
    const float factor = first_factor(params.problem.log_decay, item);
#pragma unroll
    for (float& value : state[0]) value *= factor;
  }
  store_state(state[0], item.final_state,
              {params.problem.K,
               params.problem.V,
               {params.problem.V, 1},
               found.first_key,
               item.first_column + 64 * warpgroup});
}

template <class Config>
__device__ void make_state(const StateParams& params, StateShared<Config>& shared) {
  const int warpgroup = __shfl_sync(0xFFFFFFFFu, threadIdx.x / 128, 0);
  const int warp = __shfl_sync(0xFFFFFFFFu, threadIdx.x / 32, 0);

  if (threadIdx.x == 0) {
    constexpr int kDecayThreads = 32;
    shared.input.init((params.tma ? 1 : kGatherThreads) + kDecayThreads,
                      128 * Config::kStateWarpgroups);
    fence_barriers_initialised();
  }
  follow_stream();
  __syncthreads();

  StateItem found = find_state_item<Config>(params);
  const int to = found.segment + params.shift;
  if (to < 0 || to >= params.segments) return;
  if (params.forgets) keep_remembered<Config>(params.problem.log_decay, shared, found);
  if (warpgroup == 0) {
    cutlass::arch::warpgroup_reg_dealloc<Config::kLoadRegisters>();
    if (warp == 1) {
      prepare_span_decay(params, shared, found);
    } else if (params.tma) {
      if (threadIdx.x == 0) load_span_with_tma(params, shared, found);
    } else if (warp % 2 == 0) {
      load_span_with_threads(params, shared, found);
    }
  } else {
    cutlass::arch::warpgroup_reg_alloc<Config::kStateRegisters>();
    accumulate_span(params, shared, found, warpgroup - 1);
  }
}

template <class Config>
__global__ __launch_bounds__(Config::kThreads,
                             1) void gla_state_kernel(const __grid_constant__ StateParams params) {
  extern __shared__ __align__(1024) char shared_memory[];
  make_state<Config>(params, *reinterpret_cast<StateShared<Config>*>(shared_memory));
}

/// Both directions in one launch. why: where one head remembers long, the other direction's CTAs
/// need not wait for it.
template <class States, class Gradients>
__global__ __launch_bounds__(States::kThreads, 1) void gla_segment_states_kernel(
    const __grid_constant__ SegmentStatesParams params) {
  extern __shared__ __align__(1024) char shared_memory[];
  if (blockIdx.y == 0) {
    make_state<States>(params.states, *reinterpret_cast<StateShared<States>*>(shared_memory));
  } else {
    make_state<Gradients>(params.gradients,
                          *reinterpret_cast<StateShared<Gradients>*>(shared_memory));
  }
}

template <class Config>
unsigned state_blocks(const StateParams& params) {
  const GlaRecurrence& problem = params.problem;
  return static_cast<unsigned>(problem.N * problem.H * params.segments *
                               ceil_div(problem.K, Config::kKeyDim) *
                               ceil_div(problem.V, Config::kValueDim));
}

template <class Config>
void launch_state(const char* name, const StateParams& params, void* stream) {
  static_assert(sizeof(StateShared<Config>) <= kSharedMemoryPerBlock);
  launch_kernel(name, gla_state_kernel<Config>,
                {.blocks = state_blocks<Config>(params),
                 .threads = Config::kThreads,
                 .shared_bytes = sizeof(StateShared<Config>)},
                static_cast<cudaStream_t>(stream), params);
}

template <class Element, int kKeyDim, int kValueDim>
void launch_segment_states(const char* name, const SegmentStatesParams& params, void* stream) {
  using States = StateConfig<Element, kKeyDim, kValueDim, false>;
  using Gradients = StateConfig<Element, kKeyDim, kValueDim, true>;
  launch_kernel(
      name, gla_segment_states_kernel<States, Gradients>,
      {.blocks = state_blocks<States>(params.states),
       .blocks_y = 2,
       .threads = States::kThreads,
       .shared_bytes = std::max(sizeof(StateShared<States>), sizeof(StateShared<Gradients>))},
      static_cast<cudaStream_t>(stream), params);
}

}  // namespace tandem::cuda::gla
