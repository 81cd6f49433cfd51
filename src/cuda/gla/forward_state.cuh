// The state role of gla_forward_kernel: the recurrence over chunks, and o.
#pragma once

#include "cuda/gla/forward_output.cuh"
#include "cuda/parts/wgmma.cuh"

namespace tandem::cuda {

/// Calls visit(accumulator index, key, value) for this thread's elements of St that exist.
template <class Config, class Visit>
__device__ void for_each_state_element(const GlaForwardProblem& problem, int group, Visit visit) {
#pragma unroll
  for (int i = 0; i < Config::kKeyDim / 2; ++i) {
    const int key = fragment_column(i / 4) + i % 2;
    const int value = 64 * group + fragment_row() + i / 2 % 2 * 8;
    if (key < problem.K && value < problem.V) visit(i, key, value);
  }
}

template <class Config>
__device__ void run_state(const GlaForwardParams& params, ForwardShared<Config>& shared,
                          const Span& span, int group) {
  using Element = typename Config::Element;
  const GlaForwardProblem& problem = params.problem;
  const std::int64_t state_offset = span.sequence_head * problem.K * problem.V;
  char* o_panel = shared.o[group];

  float state[Config::kKeyDim / 2] = {};  // St, rows 64*group + [0,64)
  if (problem.initial_state != nullptr && problem.N > 0) {
    for_each_state_element<Config>(problem, group, [&](int i, int key, int value) {
      state[i] = problem.initial_state[state_offset + std::int64_t{key} * problem.V + value];
    });
  }
  if (problem.cu_seqlens != nullptr) clear_uncovered<Element>(problem, span, group);

  typename ForwardShared<Config>::InputRing::Position in;
  typename ForwardShared<Config>::IntraRing::Position p_at;
  for (int chunk = 0; chunk < span.chunks<Config>(); ++chunk, in.advance(), p_at.advance()) {
    const auto& stage = shared.stages[in.stage];
    const auto& decay = shared.decay[in.stage];
    const char* v_panel = stage.v + group * panel_bytes(Config::kChunk);
    shared.input.wait_full(in);
    shared.intra.wait_full(p_at);

    std::uint32_t state_operand[Config::kKeyDim / 16][4];
#pragma unroll
    for (int step = 0; step < Config::kKeyDim / 16; ++step) {
      accumulator_to_operand<Element>(state, step, state_operand[step]);
    }
    const float state_to_state = decay.state_to_state;
#pragma unroll
    for (float& value : state) value *= state_to_state;
    float inter[32];
    float intra[32];
    wgmma_begin();
#pragma unroll
    for (int step = 0; step < Config::kKeyDim / 16; ++step) {
      wgmma_rs<Element, 64, Major::K>(inter, state_operand[step], k_major_descriptor(stage.q, step),
                                      step > 0);
    }
    wgmma_commit();
#pragma unroll
    for (int step = 0; step < Config::kChunk / 16; ++step) {
      wgmma_ss<Element, 64, Major::MN, Major::K>(intra, mn_major_descriptor(v_panel, step),
                                                 k_major_descriptor(shared.p[p_at.stage], step),
                                                 step > 0);
    }
    wgmma_commit();

    // why: not earlier, so that the decayed V takes the registers of the state's operand.
    wgmma_wait<1>();
    std::uint32_t value_operand[Config::kChunk / 16][4];
#pragma unroll
    for (int step = 0; step < Config::kChunk / 16; ++step) {
      load_columns(v_panel, step, value_operand[step]);
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int token = fragment_column(2 * step + i / 2);
        const float2 factor = *reinterpret_cast<const float2*>(&decay.to_state[token]);
        const float2 pair = unpack_pair<Element>(value_operand[step][i]);
        value_operand[step][i] = pack_pair<Element>(pair.x * factor.x, pair.y * factor.y);
      }
    }
    wgmma_begin();
#pragma unroll
    for (int step = 0; step < Config::kChunk / 16; ++step) {
      wgmma_rs<Element, Config::kKeyDim, Major::MN>(state, value_operand[step],
                                                    mn_major_descriptor(stage.k, step), true);
    }
    wgmma_commit();

    // Under the state's product: the output.
    wgmma_wait<1>();
    fence_registers(inter);
    fence_registers(intra);
    shared.intra.empty[p_at.stage].arrive();
    if (threadIdx.x % 128 == 0) wait_stores_read();
    sync_warpgroup(2 + group);
    store_output<Config>(params, span, chunk, group, inter, intra, decay, o_panel);
    wgmma_wait<0>();
    fence_registers(state);
    shared.input.empty[in.stage].arrive();
  }

  if (problem.final_state != nullptr && problem.N > 0) {
    for_each_state_element<Config>(problem, group, [&](int i, int key, int value) {
      problem.final_state[state_offset + std::int64_t{key} * problem.V + value] = state[i];
    });
  }
  if (threadIdx.x % 128 == 0) wait_stores_read();
}

}  // namespace tandem::cuda
