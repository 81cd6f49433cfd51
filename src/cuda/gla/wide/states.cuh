// gla_wide_states_kernel: the states at both ends of every span, for gla_wide_gradients_kernel.
//
// A CTA walks a sequence for a head, 64 columns of V and 128 of K, either over k and v from the
// first token on, or over q and do from the last token back, in chunks of 64 tokens. It leaves the
// states that it has where a span begins along the walk, rounded to 16 bits:
//   St  = 2^G_C St + (Vt 2^(G_C - G_j)) K            before a span
//   dSt = the same of do and q (parts/decay.cuh)     behind a span, without the next token's decay
// The second walk, which then comes behind the first, adds up <S, dS> of each span.
//
// Role    threads             registers  work
//   load  warp 0, one thread         56  k and v of later chunks by TMA (3 stages)
//         warp 1                     56  decay factors of later chunks
//   state warpgroup 1               200  St in registers, out through shared memory, bulk copies
// Shared memory: 90 KB, for two CTAs an SM.
//
//   load  ~~~ chunk n+2 ~~~   ~~~ chunk n+3 ~~~
//   state -round, store- -decay V- =V K=   -decay V- =V K=
// load waits for input.empty and arrives on input.full; state the other way round.
//
// Floor: q, k, v and do read once (k and q for other columns of V from the L2), and two states of
// 2 K V bytes written per head and span, of which S is read once again. Numerics: fp32 states;
// rounded are the decayed V, and what is left behind.
#pragma once

#include <cutlass/arch/reg_reconfig.h>

#include <cute/arch/copy_sm90_tma.hpp>

#include "cuda/gla/common/products.cuh"
#include "cuda/gla/common/state_elements.cuh"
#include "cuda/gla/common/tiles.cuh"
#include "cuda/gla/wide/params.h"
#include "cuda/parts/decay.cuh"
#include "cuda/parts/ring.cuh"
#include "cuda/parts/stream_order.cuh"
#include "cuda/parts/warp_sums.cuh"

namespace tandem::cuda::gla {

template <class ElementT, bool kReverseT>
struct WideStatesConfig {
  using Element = ElementT;
  static constexpr bool kReverse = kReverseT;
  static constexpr int kChunk = 64;
  static constexpr int kKeyDim = kWideStateKeys;
  static constexpr int kTileBytes = kKeyDim / kPanelColumns * panel_bytes(64);
};

struct WideStatesShape {
  static constexpr int kThreads = 256;
  static constexpr int kMemoryRegisters = 56;
  static constexpr int kStateRegisters = 200;
  static_assert(kMemoryRegisters + kStateRegisters <=
                65536 / kWideWalksAtOnce / kThreads / 8 * 8 * 2);
};

/// Which walks a launch makes: one of both, or both side by side.
enum class WideWalks { kForward, kReverse, kBoth };

struct WideStatesParams {
  WideBackwardParams backward;
  WideWalks walks;
};

struct WideStatesShared {
  static constexpr int kStages = 3;
  using Tile = char[kWideStateKeys / kPanelColumns * panel_bytes(64)];
  struct Stage {
    alignas(1024) Tile k;
    alignas(1024) char v[panel_bytes(64)];
  };
  Stage stages[kStages];
  alignas(1024) Tile state;  // on its way out
  ChunkDecay<64> decay[kStages];
  Ring<kStages> input;
};

/// What a CTA walks. Chunks are counted along the walk.
template <class Config>
struct WideStatesWalk {
  const WideBackwardParams& params;
  WideStatesShared& shared;
  int head;   // of the launch
  int panel;  // of V
  int part;   // of K
  Item item;

  using Element = typename Config::Element;
  using Position = RingPosition<WideStatesShared::kStages>;
  using State = float[Config::kKeyDim / 2];

  __device__ WideStatesWalk(const WideBackwardParams& params, WideStatesShared& shared,
                            unsigned index)
      : params(params), shared(shared) {
    const GlaForwardProblem& problem = params.problem.forward;
    constexpr unsigned kParts = kWideColumns / kWideStateKeys;
    const unsigned of_part = index / kParts;
    part = static_cast<int>(index % kParts);
    head = static_cast<int>(of_part / params.value_panels);
    panel = static_cast<int>(of_part % params.value_panels);
    const int of_all = params.first_head + head;
    set_sequence(item, problem, of_all / problem.H);
    item.head = of_all % problem.H;
    item.first_column = 64 * panel;
  }

  __device__ int first_key() const { return part * Config::kKeyDim; }
  __device__ std::int64_t state_offset() const {
    const GlaForwardProblem& problem = params.problem.forward;
    return std::int64_t{params.first_head + head} * problem.K * problem.V;
  }
  __device__ const float* begin_state() const {
    const float* states =
        Config::kReverse ? params.problem.d_final_state : params.problem.forward.initial_state;
    return states == nullptr ? nullptr : states + state_offset();
  }
  __device__ float* end_state() const {
    float* states = Config::kReverse ? params.problem.d_initial_state : nullptr;
    return states == nullptr ? nullptr : states + state_offset();
  }
  __device__ int all_chunks() const { return item.template chunks<Config>(); }
  /// Chunks that come before some span, or all of them.
  __device__ int chunks() const {
    const int all = all_chunks();
    if (end_state() != nullptr) return all;
    const int last_span = Config::kReverse ? kWideChunks : (all - 1) % kWideChunks + 1;
    return max(all - last_span, 0);
  }
  /// Chunks walked before the second span along the walk begins.
  __device__ int first_span() const {
    return Config::kReverse ? (all_chunks() - 1) % kWideChunks + 1 : kWideChunks;
  }

  __device__ void load() const {
    const CUtensorMap& k_map = Config::kReverse ? params.q_map : params.k_map;
    const CUtensorMap& v_map = Config::kReverse ? params.d_o_map : params.v_map;
    Position at;
    for (int chunk = 0; chunk < chunks(); ++chunk, at.advance()) {
      auto& stage = shared.stages[at.stage];
      Barrier& full = shared.input.full[at.stage];
      const TileCoordinate from{first_key(), item.head, item.chunk_begin<Config>(chunk),
                                item.batch};
      shared.input.wait_empty(at);
      full.arrive_and_expect(Config::kTileBytes + panel_bytes(64));
      load_tile(k_map, full, stage.k, Config::kKeyDim, from);
      load_panel(v_map, full, stage.v, {item.first_column, from.head, from.time, from.batch});
    }
  }

  /// Loads a chunk's natural-log decays, 0 where there is no token.
  __device__ LogDecays load_decays(int chunk) const {
    const DecayTensor& decay = params.problem.forward.log_decay;
    const float* from =
        decay.data + item.batch * decay.batch_stride + item.head * decay.head_stride;
    const int begin = item.chunk_begin<Config>(chunk), end = item.begin + item.length;
    const auto of_token = [&](int offset) {
      const int time = begin + offset;
      const bool inside = chunk < chunks() && time < end;
      return decay.data != nullptr && inside ? from[time * decay.time_stride] : 0.0f;
    };
    const int token = 2 * (threadIdx.x % 32);
    return {{of_token(token), of_token(token + 1)}, Config::kReverse ? of_token(64) : 0.0f};
  }
  /// Makes the decay factors of all chunks. All lanes of one warp.
  __device__ void prepare_decays() const {
    LogDecays own = load_decays(0);
    Position at;
    for (int chunk = 0; chunk < chunks(); ++chunk, at.advance()) {
      const LogDecays next = load_decays(chunk + 1);
      shared.input.wait_empty(at);
      compute_chunk_decay<Config::kReverse>(own, params.problem.forward.scale,
                                            shared.decay[at.stage]);
      own = next;
      shared.input.full[at.stage].arrive();
    }
  }

  __device__ std::int64_t kept(int span) const {
    return (std::int64_t{head} * params.spans + span) * params.state_bytes() +
           (std::int64_t{panel} * (kWideColumns / kWideStateKeys) + part) * Config::kTileBytes;
  }

  /// Adds up <S, dS>: this walk's state, and what the other one kept, as far as a warp has them.
  __device__ void sum_flow(const State& state, int span) const {
    const char* const other = params.states + kept(span);
    const int row = fragment_row();
    float own[4] = {};
#pragma unroll
    for (int i = 0; i < Config::kKeyDim / 2; i += 4) {
      const int block = i / 4;  // of eight columns
      const char* const piece =
          other + block / 8 * panel_bytes(64) + panel_offset(row, block % 8) + threadIdx.x % 4 * 4;
      const auto pair_at = [&](int rows) {
        return unpack_pair<Element>(
            *reinterpret_cast<const std::uint32_t*>(piece + rows * kPanelRowBytes));
      };
      const float2 upper = pair_at(0), lower = pair_at(8);
      own[0] += state[i] * upper.x;
      own[1] += state[i + 1] * upper.y;
      own[2] += state[i + 2] * lower.x;
      own[3] += state[i + 3] * lower.y;
    }
    const float sum = sum_warp(own[0] + own[1] + (own[2] + own[3]));
    if (threadIdx.x % 32 != 0) return;
    const std::int64_t at =
        (std::int64_t{head} * params.spans + span) * params.value_panels + panel;
    params.flows[kWideFlows * at + 4 * part + threadIdx.x / 32 % 4] = sum;
  }

  /// Stores the state where a span begins, through shared memory.
  __device__ void keep(const State& state, int span) const {
    const bool stores = threadIdx.x % 128 == 0;
    char* const to = (Config::kReverse ? params.state_gradients : params.states) + kept(span);
    if (stores) wait_stores_read();
    sync_warpgroup(1);
    put_rows<Element>(state, shared.state);
    fence_shared_for_async_proxy();
    sync_warpgroup(1);
    if (stores) {
      cute::SM90_BULK_COPY_S2G::copy(shared.state, to, Config::kTileBytes);
      cute::tma_store_arrive();
    }
    if (Config::kReverse && params.flows != nullptr) sum_flow(state, span);
  }

  __device__ StateTile tile() const {
    const GlaForwardProblem& problem = params.problem.forward;
    return {problem.K, problem.V, {problem.V, 1}, first_key(), item.first_column};
  }

  __device__ void walk() const {
    State state = {};
    if (begin_state() != nullptr) load_state(state, begin_state(), tile());
    Position at;
    const int end = chunks(), spans = (all_chunks() + kWideChunks - 1) / kWideChunks;
    int left = 0;  // chunks until the next span begins
    int span = Config::kReverse ? spans - 1 : 0;
    for (int chunk = 0; chunk < end; ++chunk, at.advance()) {
      if (left == 0) {
        keep(state, span);
        left = chunk == 0 ? first_span() : kWideChunks;
        span += Config::kReverse ? -1 : 1;
      }
      --left;
      const auto& stage = shared.stages[at.stage];
      std::uint32_t values[4][4];
      shared.input.wait_full(at);
      const auto& decay = shared.decay[at.stage];
      load_decayed_values<Element, 0, 4>(values, stage.v, decay.to_state);
      const float factor = decay.state_to_state;
#pragma unroll
      for (float& value : state) value *= factor;
      fence_registers(state);
      wgmma_begin();
      add_tokens<Element>(state, values, stage.k);
      wgmma_wait<0>();
      hold_operand(values);
      fence_registers(state);
      shared.input.empty[at.stage].arrive();
    }
    if (end_state() == nullptr && spans > 0) keep(state, span);
    if (end_state() != nullptr) {
      const float factor = first_factor(params.problem.forward.log_decay, item);
#pragma unroll
      for (float& value : state) value *= factor;
      store_state(state, end_state(), tile());
    }
    if (threadIdx.x % 128 == 0) wait_stores_read();
  }
};

template <class Element>
__global__ __launch_bounds__(
    WideStatesShape::kThreads,
    kWideWalksAtOnce) void gla_wide_states_kernel(const __grid_constant__ WideStatesParams all) {
  extern __shared__ __align__(1024) char shared_memory[];
  auto& shared = *reinterpret_cast<WideStatesShared*>(shared_memory);
  const WideBackwardParams& params = all.backward;
  const bool both = all.walks == WideWalks::kBoth;
  const bool reverse = both ? blockIdx.x % 2 == 1 : all.walks == WideWalks::kReverse;
  const unsigned index = both ? blockIdx.x / 2 : blockIdx.x;
  const int warp = __shfl_sync(0xFFFFFFFFu, threadIdx.x / 32, 0);
  if (threadIdx.x == 32) {
    prefetch_tensor_map(reverse ? params.q_map : params.k_map);
    prefetch_tensor_map(reverse ? params.d_o_map : params.v_map);
  }
  const auto run = [&]<bool kReverse>() {
    const WideStatesWalk<WideStatesConfig<Element, kReverse>> walk(params, shared, index);
    if (threadIdx.x == 0) {
      shared.input.init(1 + 32, 128);
      fence_barriers_initialised();
    }
    follow_stream();
    __syncthreads();
    if (warp < 4) {
      cutlass::arch::warpgroup_reg_dealloc<WideStatesShape::kMemoryRegisters>();
      if (threadIdx.x == 0) walk.load();
      if (warp == 1) walk.prepare_decays();
    } else {
      cutlass::arch::warpgroup_reg_alloc<WideStatesShape::kStateRegisters>();
      walk.walk();
    }
  };
  if (reverse) {
    run.template operator()<true>();
  } else {
    run.template operator()<false>();
  }
}

}  // namespace tandem::cuda::gla
