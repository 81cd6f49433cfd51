// The state role of gla_group_gradients_kernel: the state between the chunks of a pair, and what
// the states have to do with the gradient by the decays.
#pragma once

#include "cuda/gla/common/products.cuh"
#include "cuda/gla/common/state_elements.cuh"
#include "cuda/gla/groups/shared.cuh"
#include "cuda/parts/ring.cuh"

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

  /// Leaves shares of <S, dS>, one of them in registers.
  __device__ static void multiply_states(const float (&state)[Config::kKeyDim / 2],
                                         const char* near, float (&flows)[32]) {
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
    float sum = sums[0] + sums[1] + (sums[2] + sums[3]);
    sum += __shfl_xor_sync(0xFFFFFFFFu, sum, 1);
    sum += __shfl_xor_sync(0xFFFFFFFFu, sum, 2);
    if (threadIdx.x % 4 == 0) flows[threadIdx.x % 128 / 4] = sum;
  }

  __device__ void run() const {
    RingPosition<GroupShared<Config>::kStages> at;
    for (unsigned item = first_item(); item < group_items(params); item += gridDim.x) {
      const bool is_second = find_item(params, item).is_second();
#pragma unroll 1
      for (int member = 0; member < params.members; ++member, at.advance()) {
        Stage& stage = shared.stages[at.stage];
        Tokens& tokens = shared.tokens[at.stage];
        float state[Config::kKeyDim / 2];
        shared.full[at.stage].wait(at.parity);
        pass(is_second ? stage.state : stage.gradient, stage, tokens.decay, state);
        shared.state_made[at.stage].arrive();
        multiply_states(state, is_second ? stage.gradient : stage.state, tokens.flows);
        shared.made[at.stage].arrive();
      }
      cutlass::arch::NamedBarrier::arrive(2 * Config::kRoleThreads, Config::kOtherRead);
    }
  }
};

}  // namespace tandem::cuda::gla
