// gla_chunk_states_kernel: the states at both ends of every pair of chunks, for the gradients by
// chunks.
//
// A CTA walks one segment of a sequence of one head at 64 x 64 columns, either over k and v from
// the first token on, or over q and do from the last token back, in chunks of 64 tokens, and leaves
// the state that it has where a pair of chunks begins along the walk, rounded to 16 bits:
//   St  = 2^G_C St + (Vt 2^(G_C - G_j)) K            before a pair
//   dSt = the same of do and q (parts/decay.cuh)     behind a pair, without the next token's decay
// Of several segments of a sequence all but the walk's first begin as 0 and leave, with each state,
// the factor from their begin. Of two the first stores the state where the second begins, and
// gla_chunk_gradients_kernel adds what is left of it; of more each leaves its end in fp32, and
// gla_chunk_entries_kernel adds. why two ways: that launch takes as long as a second cut saves
// where heads are not that few, and sums of two rounded states are too rough for more.
//
// Role    threads              work
//   load  warp 0, one thread   both tensors of later chunks by TMA (4 stages)
//         warp 1               decay factors of later chunks
//   state warpgroup 1          St in registers, panels through shared memory and bulk copies
// Shared memory: 91 KB, two CTAs per SM.
//
//   load  ~~~ chunk n+3 ~~~   ~~~ chunk n+4 ~~~
//   state -round, store- -decay V- =V K=   -round, store- -decay V- =V K=
// load waits for input.empty and arrives on input.full; state the other way round.
//
// Floor: k, v, q, do read once and two panels of 8 KB written per pair; latency binds where heads
// are few. Numerics: fp32 states; rounded are the decayed V, and what is left behind.
#pragma once

#include <cute/arch/copy_sm90_tma.hpp>

#include "cuda/gla/chunks/params.h"
#include "cuda/gla/common/decay_stream.cuh"
#include "cuda/gla/common/state_elements.cuh"
#include "cuda/parts/decay.cuh"
#include "cuda/parts/ring.cuh"
#include "cuda/parts/stream_order.cuh"
#include "cuda/parts/tma.cuh"
#include "cuda/parts/wgmma.cuh"

namespace tandem::cuda::gla {

template <class ElementT, bool kReverseT>
struct ChunkStatesConfig {
  using Element = ElementT;
  static constexpr int kChunk = 64;
  static constexpr bool kReverse = kReverseT;
};

struct ChunkStatesShared {
  static constexpr int kStages = 4;
  static constexpr int kPanels = 3;  // one being written, one being read, one in between
  struct Stage {
    alignas(1024) char k[panel_bytes(64)];
    alignas(1024) char v[panel_bytes(64)];
  };
  Stage stages[kStages];
  alignas(1024) char panels[kPanels][panel_bytes(64)];
  ChunkDecay<64> decay[kStages];
  DecayStream<false>::Buffer log_decays;
  Ring<kStages> input;
};

/// What a CTA walks: pairs [first, last) of chunks, counted along the walk.
template <class Config>
struct ChunkStatesWalk {
  const GlaForwardProblem& problem;
  const CUtensorMap& k_map;
  const CUtensorMap& v_map;
  Item item;                      // initial_state and final_state where the walk begins and ends
  const CUtensorMap& states_map;  // of a forward walk
  char* panels = nullptr;         // of a reverse one: of the sequence's first pair in time
  EntryFactors* entry_factors = nullptr;  // the same pair's; null where the entry state is known
  SegmentEnd* segment_end = nullptr;      // null where there is no next segment, or but two
  int pairs;                              // of the sequence
  int first = 0;
  int last;
  bool keeps_first;  // else the segment before does

  static constexpr std::int64_t kPanelBytes = panel_bytes(64);
  static constexpr int kSteps = Config::kChunk / 16;

  __device__ ChunkStatesWalk(const ChunkBackwardParams& params, unsigned of_sequence_head,
                             int segment)
      : problem(params.problem.forward),
        k_map(Config::kReverse ? params.q_map : params.k_map),
        v_map(Config::kReverse ? params.d_o_map : params.v_map),
        states_map(params.states_map),
        pairs(params.pairs) {
    const GlaBackwardProblem& backward = params.problem;
    const unsigned batch = of_sequence_head / problem.H;
    item.head = static_cast<int>(of_sequence_head - batch * problem.H);
    set_sequence(item, problem, batch);
    const std::int64_t sequence_head = of_sequence_head;
    const std::int64_t state = sequence_head * problem.K * problem.V;
    const float* initial = Config::kReverse ? backward.d_final_state : problem.initial_state;
    const bool first_segment = segment == 0, last_segment = segment == params.segments - 1;
    if (Config::kReverse && first_segment && backward.d_initial_state != nullptr) {
      item.final_state = backward.d_initial_state + state;
    }
    if (Config::kReverse) {
      panels = static_cast<char*>(params.state_gradients) + sequence_head * pairs * kPanelBytes;
    }
    // Nobody reads the state behind the last pair, unless it is d_initial_state.
    last = item.final_state != nullptr ? pairs : max(pairs - 1, 0);
    const int begin = segment * params.segment_pairs, end = begin + params.segment_pairs;
    if (!(Config::kReverse ? last_segment : first_segment)) {
      first = Config::kReverse ? pairs - end : begin;
      entry_factors = params.entry_factors + sequence_head * pairs;
    } else if (initial != nullptr) {
      item.initial_state = initial + state;
    }
    if (!(Config::kReverse ? first_segment : last_segment)) {
      last = Config::kReverse ? pairs - begin : end;
      if (params.ends != nullptr) {
        segment_end =
            params.ends + (2 * sequence_head + Config::kReverse) * params.segments + segment;
      }
    }
    keeps_first = entry_factors == nullptr || params.ends != nullptr;
  }

  /// Converts a chunk pair counted along the walk to one counted in time, or back.
  __device__ int in_time(int pair) const { return Config::kReverse ? pairs - 1 - pair : pair; }
  /// First chunk of a chunk pair, both counted along the walk. The last pair in time may be one
  /// chunk.
  __device__ int first_chunk(int pair) const {
    const int chunks = item.chunks<Config>();
    return min(max(2 * pair - (Config::kReverse ? chunks % 2 : 0), 0), chunks);
  }

  __device__ StateTile tile() const { return {problem.K, problem.V, {problem.V, 1}, 0, 0}; }

  __device__ void load(ChunkStatesShared& shared) const {
    Ring<ChunkStatesShared::kStages>::Position at;
    for (int chunk = first_chunk(first); chunk < first_chunk(last); ++chunk, at.advance()) {
      auto& stage = shared.stages[at.stage];
      Barrier& full = shared.input.full[at.stage];
      const TileCoordinate from{0, item.head, item.chunk_begin<Config>(chunk), item.batch};
      shared.input.wait_empty(at);
      full.arrive_and_expect(2 * kPanelBytes);
      load_panel(k_map, full, stage.k, from);
      load_panel(v_map, full, stage.v, from);
    }
  }

  /// Makes the decay factors of all chunks. All lanes of one warp.
  __device__ void prepare_decay(ChunkStatesShared& shared) const {
    Ring<ChunkStatesShared::kStages>::Position at;
    const int begin = first_chunk(first), end = first_chunk(last);
    DecayStream<Config::kReverse> decays(shared.log_decays, problem.log_decay, item, item.length,
                                         item.chunk_offset<Config>(begin),
                                         Config::kReverse ? -1 : 1);
    for (int chunk = begin; chunk < end; ++chunk, at.advance()) {
      const LogDecays own = decays.next();
      shared.input.wait_empty(at);
      compute_chunk_decay<Config::kReverse>(own, problem.scale, shared.decay[at.stage]);
      shared.input.full[at.stage].arrive();
    }
  }

  __device__ static bool stores() { return threadIdx.x % 128 == 0; }

  /// Stores the state where a chunk pair begins, by way of a shared panel; `factor` leads to it
  /// from the segment's begin.
  __device__ void keep(char* panel, const float (&state)[32], int pair, float factor) const {
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
      std::uint32_t rounded[4];
      accumulator_to_operand<typename Config::Element>(state, step, rounded);
      store_rows(panel, step, rounded);
    }
    fence_shared_for_async_proxy();
    // why here: behind the barrier below, others write to the panel that the last but one store
    // reads.
    if (stores()) cute::tma_store_wait<1>();
    sync_warpgroup(1);
    if (stores()) {
      const int index = in_time(pair);
      if constexpr (Config::kReverse) {
        cute::SM90_BULK_COPY_S2G::copy(panel, panels + index * kPanelBytes, kPanelBytes);
        cute::tma_store_arrive();
      } else {
        store_panel(states_map, panel, {0, item.head, 0, item.batch * pairs + index});
      }
      if (entry_factors != nullptr) {
        EntryFactors& factors = entry_factors[index];
        (Config::kReverse ? factors.gradient : factors.state) = factor;
      }
    }
  }

  __device__ void walk(ChunkStatesShared& shared) const {
    using Element = typename Config::Element;
    float state[32] = {};
    if (item.initial_state != nullptr) load_state(state, item.initial_state, tile());
    Ring<ChunkStatesShared::kStages>::Position at;
    int panel_index = 0;
    float passed = 1.0f;  // factor from the state that this walk began with
    for (int pair = first; pair <= last && pair < pairs; ++pair) {
      const bool hands_on = pair == last && segment_end != nullptr;
      if (!hands_on && (keeps_first || pair > first)) {
        keep(shared.panels[panel_index], state, pair, passed);
        panel_index = panel_index + 1 < ChunkStatesShared::kPanels ? panel_index + 1 : 0;
      }
      if (pair == last) break;
      const int end = first_chunk(pair + 1);
      for (int chunk = first_chunk(pair); chunk < end; ++chunk, at.advance()) {
        const auto& stage = shared.stages[at.stage];
        const auto& decay = shared.decay[at.stage];
        shared.input.wait_full(at);
        std::uint32_t values[kSteps][4];
        load_decayed_values<Element, 0, kSteps>(values, stage.v, decay.to_state);
        const float factor = decay.state_to_state;
        passed *= factor;
#pragma unroll
        for (float& value : state) value *= factor;
        fence_registers(state);
        wgmma_begin();
#pragma unroll
        for (int step = 0; step < kSteps; ++step) {
          wgmma_rs<Element, 64, Major::MN>(state, values[step], mn_major_descriptor(stage.k, step),
                                           true);
        }
        wgmma_commit();
        wgmma_wait<0>();
        fence_registers(state);
        shared.input.empty[at.stage].arrive();
      }
    }
    if (segment_end != nullptr) {
      float* const added = segment_end->added + 64 * fragment_row() + fragment_column(0);
#pragma unroll
      for (int i = 0; i < 32; i += 4) {
        *reinterpret_cast<float2*>(added + 2 * i) = {state[i], state[i + 1]};
        *reinterpret_cast<float2*>(added + 8 * 64 + 2 * i) = {state[i + 2], state[i + 3]};
      }
      segment_end->factor = passed;
    }
    if (item.final_state != nullptr) {
      const float factor = first_factor(problem.log_decay, item);
#pragma unroll
      for (float& value : state) value *= factor;
      store_state(state, item.final_state, tile());
    }
    if (stores()) wait_stores_read();
  }
};

/// `kForward`, `kReverse`: the directions that are walked.
template <class Element, bool kForward, bool kReverse>
__global__ __launch_bounds__(256, 2) void gla_chunk_states_kernel(
    const __grid_constant__ ChunkBackwardParams params) {
  extern __shared__ __align__(1024) char shared_memory[];
  auto& shared = *reinterpret_cast<ChunkStatesShared*>(shared_memory);
  const int warp = __shfl_sync(0xFFFFFFFFu, threadIdx.x / 32, 0);
  constexpr unsigned kDirections = kForward + kReverse;
  const bool reverse = !kForward || blockIdx.x % kDirections == 1;
  if (threadIdx.x == 32) {
    prefetch_tensor_map(reverse ? params.q_map : params.k_map);
    prefetch_tensor_map(reverse ? params.d_o_map : params.v_map);
    if (!reverse) prefetch_tensor_map(params.states_map);
  }
  if (threadIdx.x == 0) {
    shared.input.init(1 + 32, 128);
    fence_barriers_initialised();
  }
  follow_stream();
  __syncthreads();

  const auto run = [&]<bool kBack>() {
    const ChunkStatesWalk<ChunkStatesConfig<Element, kBack>> walk(params, blockIdx.x / kDirections,
                                                                  static_cast<int>(blockIdx.y));
    if (warp >= 4) {
      walk.walk(shared);
    } else if (warp == 1) {
      walk.prepare_decay(shared);
    } else if (threadIdx.x == 0) {
      walk.load(shared);
    }
  };
  if constexpr (kReverse) {
    if (reverse) return run.template operator()<true>();
  }
  if constexpr (kForward) run.template operator()<false>();
}

}  // namespace tandem::cuda::gla
