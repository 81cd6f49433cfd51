// The gradients role of gla_reverse_kernel: dk, then dq.
#pragma once

#include "cuda/gla/common/products.cuh"
#include "cuda/gla/reverse/shared.cuh"

namespace tandem::cuda::gla {

template <class Config>
struct ReverseGradients {
  const ReverseParams& params;
  ReverseShared<Config>& shared;
  const ReverseHead head;

  using Element = typename Config::Element;

  /// Rounds the products of a chunk's queries (rows) and the values of the chunk before (columns),
  /// times the factors of both.
  __device__ static void weigh_earlier(const float (&values)[32], const float (&from_state)[64],
                                       const float (&to_state)[64],
                                       std::uint32_t (&weights)[4][4]) {
    const float row[2] = {from_state[fragment_row()], from_state[fragment_row() + 8]};
#pragma unroll
    for (int step = 0; step < 4; ++step) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int at = 8 * step + 2 * i;
        const float2 column =
            *reinterpret_cast<const float2*>(&to_state[fragment_column(2 * step + i / 2)]);
        weights[step][i] = pack_pair<Element>(values[at] * (row[i % 2] * column.x),
                                              values[at + 1] * (row[i % 2] * column.y));
      }
    }
  }

  __device__ void run() const {
    for (ReversePosition at; at.n < head.chunks; at = at.next()) {
      const int slot = at.stage();
      auto& stage = shared.stages[slot];
      auto& tokens = shared.tokens[slot];
      const char* const w = shared.weights[slot];
      shared.full[slot].wait(at.stage_parity());
      shared.gradient_full.wait(at.parity());
      float dk[Config::kKeyDim / 2];
      wgmma_begin();
      multiply_by_state<Config>(dk, stage.v, shared.gradient);
      wgmma_wait<0>();
      fence_registers(dk);
      shared.gradient_empty.arrive();
      scale_rows(dk, tokens.decay_behind.from_state);
      sum_rows<Element>(stage.k, dk, tokens.key_state);
      fence_registers(dk);
      shared.weights_full[slot].wait(at.stage_parity());
      wgmma_begin();
      add_tokens<Element, Major::K>(dk, w, stage.q);
      wgmma_wait<0>();
      fence_registers(dk);
      put_rows<Element>(dk, stage.v);

      shared.state_loaded.wait(head.pair(at.n) & 1);
      float dq[Config::kKeyDim / 2];
      if (head.is_second(at.n)) {
        const int first = at.next().stage();
        const auto& earlier = shared.stages[first];
        const auto& decay = shared.tokens[first].decay;
        shared.full[first].wait(at.next().stage_parity());
        float values[32];
        std::uint32_t weights[4][4];
        wgmma_begin();
        multiply_rows<Element, Config::kValueSteps>(values, stage.d_o, earlier.v);
        multiply_by_state<Config>(dq, stage.d_o, shared.state);
        wgmma_wait<1>();
        fence_registers(values);
        weigh_earlier(values, tokens.decay.from_state, decay.to_state, weights);
        wgmma_wait<0>();
        fence_registers(dq);
        scale_rows(dq, tokens.decay.from_state, decay.state_to_state);
        fence_registers(dq);
        wgmma_begin();
        add_tokens<Element>(dq, weights, earlier.k);
        wgmma_wait<0>();
        hold_operand(weights);
        fence_registers(dq);
      } else {
        wgmma_begin();
        multiply_by_state<Config>(dq, stage.d_o, shared.state);
        wgmma_wait<0>();
        fence_registers(dq);
        shared.state_empty.arrive();
        scale_rows(dq, tokens.decay.from_state);
      }
      sum_rows<Element>(stage.q, dq, tokens.query_state);
      fence_registers(dq);
      wgmma_begin();
      add_tokens<Element, Major::MN>(dq, w, stage.k);
      wgmma_wait<0>();
      fence_registers(dq);
      shared.weights_empty[slot].arrive();
      shared.queries_read[slot].wait(at.stage_parity());
      sync_warpgroup(2);  // no warp's product reads q any more
      put_rows<Element>(dq, stage.q);
      fence_shared_for_async_proxy();
      shared.done[slot].arrive();
    }
  }
};

}  // namespace tandem::cuda::gla
