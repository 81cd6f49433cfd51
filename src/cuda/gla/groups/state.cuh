// The state role of gla_group_gradients_kernel: the state between the chunks of a pair, and what
// the states have to do with the gradient by the decays.
#pragma once

#include "cuda/gla/common/products.cuh"
#include "cuda/gla/common/state_elements.cuh"
#include "cuda/gla/groups/shared.cuh"
#include "cuda/parts/ring.cuh"
#include "cuda/parts/warp_sums.cuh"

namespace tandem::cuda::gla {

template <class Config>
struct GroupState {
  const GroupBackwardParams& params;
  GroupShared<Config>& shared;

  using Element = typename Config::Element;
  using Stage = typename GroupShared<Config>::Stage;
  using Tokens = typename GroupShared<Config>::Tokens;

  /// Passes the state at the pair's far end over the other chunk, in place.
  __device__ void pass(char* far, const Stage& stage, const GroupDecay& decay,
                       float (&state)[Config::kKeyDim / 2]) const {
    std::uint32_t values[4][4];
    load_decayed_values<Element, 0, 4>(values, stage.other, decay.other_to_state);
    const float factor = decay.other_state_to_state;
#pragma unroll
    for (int step = 0; step < Config::kKeySteps; ++step) {
      std::uint32_t packed[4];
      get_columns<64>(far, step, 0, packed);
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float2 pair = unpack_pair<Element>(packed[i]);
        state[8 * step + 2 * i] = factor * pair.x;
        state[8 * step + 2 * i + 1] = factor * pair.y;
      }
    }
    fence_registers(state);
    wgmma_begin();
    add_tokens<Element>(state, values, shared.other);
    wgmma_wait<0>();
    hold_operand(values);
    fence_registers(state);
    put_rows<Element>(state, far);
    fence_shared_for_async_proxy();
  }

  /// Returns this warp's share of <S, dS>, one of them in registers.
  __device__ static float multiply_states(const float (&state)[Config::kKeyDim / 2],
                                          const char* near) {
    float sums[4] = {};
#pragma unroll
    for (int step = 0; step < Config::kKeySteps; ++step) {
      std::uint32_t packed[4];
      get_columns<64>(near, step, 0, packed);
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float2 pair = unpack_pair<Element>(packed[i]);
        sums[i] += pair.x * state[8 * step + 2 * i];
        sums[i] += pair.y * state[8 * step + 2 * i + 1];
      }
    }
    return sum_warp(sums[0] + sums[1] + (sums[2] + sums[3]));
  }

  __device__ void run() const {
    RingPosition<GroupShared<Config>::kStages> at;
    std::uint32_t item_parity = 0;
    for (GroupPosition now; now.more(params); at.advance(), now.advance(params)) {
      const bool is_second = find_item(params, now.item).is_second();
      if (now.head == 0) {
        shared.inputs.wait(item_parity);
        item_parity ^= 1;
      }
      Stage& stage = shared.stages[at.stage];
      Tokens& tokens = shared.tokens[at.stage];
      float state[Config::kKeyDim / 2];
      shared.full[at.stage].wait(at.parity);
      pass(is_second ? stage.state : stage.gradient, stage, tokens.decay, state);
      shared.state_made[at.stage].arrive();
      const float flow = multiply_states(state, is_second ? stage.gradient : stage.state);
      if (threadIdx.x % 32 == 0) tokens.flows[threadIdx.x % 128 / 32] = flow;
      sync_warpgroup(Config::kStateSync);
      // a = do . (scale 2^G_i (Q S)), from what dQ is made of but for its rounding.
      float o[32];
      wgmma_begin();
      multiply_by_turned_state<Config>(o, shared.q, stage.state);
      wgmma_wait<0>();
      fence_registers(o);
      scale_rows(o, tokens.decay.from_state);
      sum_rows<Element>(stage.d_o, o, tokens.query_state);
      shared.made[at.stage].arrive();
      if (now.head == params.share - 1) {
        cutlass::arch::NamedBarrier::arrive(2 * Config::kRoleThreads, Config::kOtherRead);
      }
    }
  }
};

}  // namespace tandem::cuda::gla
