// The state role of gla_walk_kernel: the recurrence over chunks, and o.
#pragma once

#include "cuda/gla/walk/key_value.cuh"
#include "cuda/gla/walk/output.cuh"
#include "cuda/gla/walk/products.cuh"
#include "cuda/gla/walk/row_sum_role.cuh"
#include "cuda/gla/walk/saved_states.cuh"

namespace tandem::cuda::gla {

/// The turns of two state warpgroups at the tensor cores, chunk by chunk. why named barriers: each
/// counts the 128 threads that hand the turn on and the 128 that take it. Who ends a kernel's last
/// turn hands it to nobody.
struct Turns {
  static constexpr int kFirstBarrier = 4;
  static constexpr int kThreads = 256;

  static __device__ void begin(int warpgroup) {
    if (warpgroup == 1) hand_on(warpgroup);
  }
  static __device__ void take(int warpgroup) {
    cutlass::arch::NamedBarrier::sync(kThreads, kFirstBarrier + warpgroup);
  }
  static __device__ void hand_on(int warpgroup) {
    cutlass::arch::NamedBarrier::arrive(kThreads, kFirstBarrier + 1 - warpgroup);
  }
};

/// Walks one chunk: leaves Ot in `o`, and St with its last product still under way. `at` is the
/// ring position of its P, its panel of o and its row sums. Its inputs are there, and P, too, but
/// with one accumulator of o, where P is waited for when it is needed.
template <class Config>
__device__ void walk_chunk(StateRegisters<Config>& state, float (&o)[32],
                           RowSumRole<Config>& row_sums, const WalkParams& params, const Item& item,
                           int chunk, typename WalkShared<Config>::IntraRing::Position at,
                           const typename WalkShared<Config>::Stage& stage, const char* v_panel,
                           const char* p, const ChunkDecay<Config::kChunk>& decay,
                           WalkShared<Config>& shared, int warpgroup) {
  using Element = typename Config::Element;
  constexpr int kSteps = Config::kChunk / 16;
  std::uint32_t values[kSteps][4];
  const bool keeps = row_sums.keeps(item, chunk);
  if constexpr (Config::kOneOutputAccumulator) {
    constexpr int kRounded = Config::kRoundedSteps;
    StateOperand<kRounded> operands[2];  // in turn
#pragma unroll
    for (int step = 0; step < Config::kKeyDim / 16; step += kRounded) {
      auto& operand = operands[step / kRounded % 2];
      round_state(operand, state, step);
      if (keeps) row_sums.keep(item, chunk, step, operand);
      save_state<Config>(params, shared, item, chunk, warpgroup, at.stage, operand, step);
      multiply_state<Config>(o, operand, stage.q, step);
      if (step == 0) continue;
      wgmma_wait<1>();
      hold_operand(operands[(step / kRounded + 1) % 2]);
    }
    finish_state(params, shared, item, chunk, warpgroup);
    wgmma_wait<0>();
    fence_registers(o);
    state.scale(decay.state_to_state);
    row_sums.prefetch(item, chunk + 1);
    scale_by_token(o, decay.from_state);
    // Row sums take P's slot, too.
    shared.intra.wait_full(at);
    row_sums.add_inter(o, stage.x(), at);
    wgmma_begin();
    multiply_intra<Config>(o, v_panel, p, true);
    load_decayed_values<Element, 0, kSteps>(values, v_panel, decay.to_state);
    update_state<Config>(state, values, stage.k);
    wgmma_wait<1>();
    fence_registers(o);
  } else {
    StateOperand<StateRegisters<Config>::kSteps> operand;
    float intra[32];
    round_state(operand, state, 0);
    if (keeps) row_sums.keep(item, chunk, 0, operand);
    save_state<Config>(params, shared, item, chunk, warpgroup, at.stage, operand, 0);
    if constexpr (Config::kWithValue) publish_state(shared, operand, warpgroup, at);
    state.scale(decay.state_to_state);
    if constexpr (Config::kTurns) Turns::take(warpgroup);
    multiply_state<Config>(o, operand, stage.q, 0);
    multiply_intra<Config>(intra, v_panel, p, false);
    row_sums.prefetch(item, chunk + 1);
    // why in two: registers do not hold all of it beside the state's operand, which the products
    // still read.
    constexpr int kEarly = !Config::kTight                          ? kSteps
                           : Config::kRowSums || Config::kHeads > 1 ? 2
                                                                    : 3;
    load_decayed_values<Element, 0, kEarly>(values, v_panel, decay.to_state);
    if constexpr (kEarly < kSteps) {
      wgmma_wait<1>();
      load_decayed_values<Element, kEarly, kSteps>(values, v_panel, decay.to_state);
    }
    update_state<Config>(state, values, stage.k);
    if constexpr (Config::kTurns) Turns::hand_on(warpgroup);
    wgmma_wait<1>();
    fence_registers(o);
    fence_registers(intra);
    scale_by_token(o, decay.from_state);
    row_sums.add_terms(o, intra, stage.x(), at);
#pragma unroll
    for (int i = 0; i < 32; ++i) o[i] += intra[i];
  }
}

template <class Config>
__device__ void run_state(const WalkParams& params, WalkShared<Config>& shared, int warpgroup) {
  typename WalkShared<Config>::InputRing::Position in;
  typename WalkShared<Config>::IntraRing::Position p_at;
  RowSumRole<Config> row_sums(params, shared, warpgroup);
  if constexpr (Config::kTurns) Turns::begin(warpgroup);
  for (ItemReader<Config> reader(shared); const Item* next = reader.current(); reader.advance()) {
    const Item& item = *next;
    StateRegisters<Config> state;
    if constexpr (Config::kSplit) {
      enter_segment(params, shared, item, state, warpgroup, in);
    } else {
      if (Config::kRelays && item.begin_ready != nullptr) {
        wait_ready(item.begin_ready[exchange_word<Config>(0)]);
      }
      state.begin(params, item, warpgroup);
    }
    row_sums.prefetch(item, 0);
    for (int chunk = 0; chunk < item.chunks<Config>(); ++chunk, in.advance(), p_at.advance()) {
      const auto& stage = shared.stages[in.stage];
      row_sums.meet(item, chunk, state, in);
      if constexpr (Config::kOneOutputAccumulator) {
        shared.input.wait_full(in);
      } else {
        shared.intra.wait_full(p_at);
      }
      float o[32];
      walk_chunk<Config>(state, o, row_sums, params, item, chunk, p_at, stage,
                         stage.v + warpgroup * panel_bytes(Config::kChunk),
                         shared.weights_of(p_at.stage, warpgroup),
                         shared.decay_of(in.stage, warpgroup), shared, warpgroup);
      // Stores the output while the state's product runs.
      row_sums.add(o, stage.x(), p_at);
      shared.intra.empty[p_at.stage].arrive();
      // The panel of this turn.
      const int panel = Config::kOutputPanels == 1  ? 0
                        : Config::kIntraStages == 1 ? static_cast<int>(p_at.parity)
                                                    : p_at.stage;
      free_output_panel<Config>(item, chunk, warpgroup);
      store_output<Config>(params, item, chunk, warpgroup, o, shared.o[warpgroup][panel]);
      wgmma_wait<0>();
      state.fence();
      shared.input.empty[in.stage].arrive();
    }
    if constexpr (Config::kReverse) state.scale(first_factor(params.problem.log_decay, item));
    state.end(params, item, warpgroup);
    if (Config::kRelays && item.end_ready != nullptr) {
      set_ready(item.end_ready[exchange_word<Config>(0)]);
    }
    if constexpr (Config::kSplit) break;  // a segment is all that a CTA walks
  }
  if (threadIdx.x % 128 == 0) wait_stores_read();
}

}  // namespace tandem::cuda::gla
