// The scores role of gla_reverse_kernel: the weights between tokens of a chunk, and dv.
#pragma once

#include "cuda/gla/common/products.cuh"
#include "cuda/gla/reverse/shared.cuh"

namespace tandem::cuda::gla {

template <class Config>
struct ReverseScores {
  const ReverseParams& params;
  ReverseShared<Config>& shared;
  const ReverseHead head;

  using Element = typename Config::Element;
  using Tokens = typename ReverseShared<Config>::Tokens;

  /// Rounds scale D (.) both score tiles [j][i]: to At in registers, to Wt in a panel. Leaves the
  /// sums of E = scale D (.) (K Qt) (.) (V dOt) over rows and columns.
  __device__ void weigh(const float (&keys)[32], const float (&values)[32], Tokens& tokens,
                        std::uint32_t (&a)[4][4], char* w) const {
    const float(&log2_sum)[64] = tokens.decay.log2_sum;
    const float scale = params.problem.forward.scale;
    const int row = fragment_row(), lane = threadIdx.x % 32;
    const float sum[2] = {log2_sum[row], log2_sum[row + 8]};
    float rows[2] = {};
    const int warp = threadIdx.x % 128 / 32;
#pragma unroll
    for (int step = 0; step < 4; ++step) {
      if (step < warp) {  // queries before all keys of the warp
        const std::uint32_t zeros[4] = {};
#pragma unroll
        for (std::uint32_t& word : a[step]) word = 0;
        store_rows(w, step, zeros);
        if (lane < 16) tokens.query_intra[warp][16 * step + lane] = 0.0f;
        continue;
      }
      float of_keys[8], of_values[8], factors[8], columns[4] = {};
#pragma unroll
      for (int i = 0; i < 8; i += 2) {
        const float2 sum_i =
            *reinterpret_cast<const float2*>(&log2_sum[fragment_column(2 * step + i / 4)]);
        factors[i] = scale * fast_exp2(sum_i.x - sum[i / 2 % 2]);
        factors[i + 1] = scale * fast_exp2(sum_i.y - sum[i / 2 % 2]);
#pragma unroll
        for (int n = i; n < i + 2; ++n) {
          of_keys[n] = keys[8 * step + n];
          of_values[n] = values[8 * step + n];
        }
      }
      // why all: 0 * NaN, and factors before the diagonal may be inf.
      if (step == warp) clear_before_diagonal(of_keys, of_values, factors);
#pragma unroll
      for (int i = 0; i < 8; ++i) {
        of_keys[i] *= factors[i];
        const float e = of_keys[i] * of_values[i];
        of_values[i] *= factors[i];
        rows[i / 2 % 2] += e;
        columns[i / 4 * 2 + i % 2] += e;
      }
      accumulator_to_operand<Element>(of_keys, 0, a[step]);
      std::uint32_t packed[4];
      accumulator_to_operand<Element>(of_values, 0, packed);
      store_rows(w, step, packed);
      const float column_sum = sum_columns(columns);
      if ((lane & 4) == 0) {
        tokens.query_intra[warp][fragment_column(2 * step + lane / 16) + lane / 8 % 2] = column_sum;
      }
    }
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float total = rows[half];
      total += __shfl_xor_sync(0xFFFFFFFFu, total, 1);
      total += __shfl_xor_sync(0xFFFFFFFFu, total, 2);
      if (lane % 4 == 0) tokens.key_intra[row + 8 * half] = total;
    }
  }

  using Stage = typename ReverseShared<Config>::Stage;

  /// Issues both score tiles, K Qt and V dOt.
  __device__ static void multiply_chunk(const Stage& stage, float (&keys)[32],
                                        float (&values)[32]) {
    wgmma_begin();
    multiply_rows<Element, Config::kKeySteps>(keys, stage.k, stage.q);
    multiply_rows<Element, Config::kValueSteps>(values, stage.v, stage.d_o);
  }

  __device__ void run() const {
    float keys[32], values[32];
    if (head.chunks > 0) {
      shared.full[0].wait(0);
      multiply_chunk(shared.stages[0], keys, values);
    }
    for (ReversePosition at; at.n < head.chunks; at = at.next()) {
      const int slot = at.stage();
      auto& stage = shared.stages[slot];
      Tokens& tokens = shared.tokens[slot];
      std::uint32_t a[4][4];
      shared.weights_empty[slot].wait(at.stage_parity() ^ 1);
      wgmma_wait<0>();
      fence_registers(keys);
      fence_registers(values);
      weigh(keys, values, tokens, a, shared.weights[slot]);
      fence_shared_for_async_proxy();
      shared.weights_full[slot].arrive();
      shared.gradient_full.wait(at.parity());
      const float factor[2] = {tokens.decay_behind.from_state[fragment_row()],
                               tokens.decay_behind.from_state[fragment_row() + 8]};
#pragma unroll
      for (int panel = 0; panel < Config::kValuePanels; ++panel) {
        float inter[32], dv[32];
        wgmma_begin();
        multiply_by_turned_state<Config>(inter, stage.k, shared.gradient + panel * panel_bytes(64));
        add_tokens<Element, false>(dv, a, stage.d_o + panel * panel_bytes(64));
        // The panel before it has left while the products ran.
        if (threadIdx.x % 128 == 0) wait_stores_read();
        sync_warpgroup(1);
        wgmma_wait<0>();
        hold_operand(a);
        fence_registers(inter);
        fence_registers(dv);
        if (panel == Config::kValuePanels - 1) {
          shared.gradient_empty.arrive();
          // The next chunk's scores, while dv leaves. Behind the last chunk there are none, and
          // what lies in the stage is multiplied for nothing.
          const ReversePosition next = at.next();
          if (next.n < head.chunks) shared.full[next.stage()].wait(next.stage_parity());
          multiply_chunk(shared.stages[next.stage()], keys, values);
        }
#pragma unroll
        for (int i = 0; i < 32; ++i) dv[i] += factor[i / 2 % 2] * inter[i];
        put_rows<Element>(dv, shared.dv);
        fence_shared_for_async_proxy();
        sync_warpgroup(1);
        if (threadIdx.x % 128 == 0) {
          TileCoordinate to = head.tile(at.n);
          to.column = kPanelColumns * panel;
          store_panel(params.dv_map, shared.dv, to);
        }
      }
      shared.done[slot].arrive();
    }
    if (threadIdx.x % 128 == 0) wait_stores_read();
  }
};

}  // namespace tandem::cuda::gla
