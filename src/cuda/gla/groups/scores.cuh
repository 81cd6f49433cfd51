// The scores role of gla_group_gradients_kernel: the weights between tokens of a chunk, and dv.
#pragma once

#include "cuda/gla/common/products.cuh"
#include "cuda/gla/groups/shared.cuh"
#include "cuda/parts/ring.cuh"

namespace tandem::cuda::gla {

template <class Config>
struct GroupScores {
  const GroupBackwardParams& params;
  GroupShared<Config>& shared;

  using Element = typename Config::Element;
  using Stage = typename GroupShared<Config>::Stage;
  using Tokens = typename GroupShared<Config>::Tokens;
  using Position = RingPosition<GroupShared<Config>::kStages>;

  /// Makes scale K Qt of an item, 0 before the diagonal.
  __device__ void make_keys(float (&keys)[32]) const {
    wgmma_begin();
    multiply_rows<Element, Config::kKeySteps>(keys, shared.k, shared.q);
    wgmma_wait<0>();
    fence_registers(keys);
    const float scale = params.problem.forward.scale;
#pragma unroll
    for (int i = 0; i < 32; ++i) {
      const int column = fragment_column(i / 4) + i % 2;
      keys[i] = column >= fragment_row() + i / 2 % 2 * 8 ? scale * keys[i] : 0.0f;
    }
  }

  /// Rounds D (.) keys to At, adds D (.) values to `sum`, and leaves the sums of E = D (.) keys (.)
  /// values over rows and columns.
  __device__ static void weigh(const float (&keys)[32], const float (&values)[32], Tokens& tokens,
                               std::uint32_t (&a)[4][4], float (&sum)[32]) {
    const float(&log2_sum)[64] = tokens.decay.log2_sum;
    const int lane = threadIdx.x % 32;
    const int warp = __shfl_sync(0xFFFFFFFFu, threadIdx.x % 128 / 32, 0);
    const int row = fragment_row();
    const float own[2] = {log2_sum[row], log2_sum[row + 8]};
    float rows[2] = {};
    const auto weigh_step = [&](int step, float(&columns)[4]) {
      float of_keys[8], of_values[8];
#pragma unroll
      for (int i = 0; i < 8; i += 2) {
        const float2 of_column =
            *reinterpret_cast<const float2*>(&log2_sum[fragment_column(2 * step + i / 4)]);
        of_keys[i] = fast_exp2(of_column.x - own[i / 2 % 2]);
        of_keys[i + 1] = fast_exp2(of_column.y - own[i / 2 % 2]);
        of_values[i] = values[8 * step + i];
        of_values[i + 1] = values[8 * step + i + 1];
      }
      // why both: 0 * NaN, and factors before the diagonal may be inf.
      if (step == warp) clear_before_diagonal(of_keys, of_values);
#pragma unroll
      for (int i = 0; i < 8; ++i) {
        const int at = 8 * step + i;
        sum[at] += of_keys[i] * of_values[i];
        of_keys[i] *= keys[at];
        rows[i / 2 % 2] += of_keys[i] * of_values[i];
        columns[i / 4 * 2 + i % 2] += of_keys[i] * of_values[i];
      }
      accumulator_to_operand<Element>(of_keys, 0, a[step]);
    };
#pragma unroll
    for (int first = 0; first < 4; first += 2) {
      float columns[2][4] = {};
#pragma unroll
      for (int step = first; step < first + 2; ++step) {
        if (step >= warp) {
          weigh_step(step, columns[step - first]);
        } else {  // queries before all keys of the warp
#pragma unroll
          for (std::uint32_t& word : a[step]) word = 0;
        }
      }
      put_column_sums(columns, first, tokens.query_intra[warp]);
    }
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float total = rows[half];
      total += __shfl_xor_sync(0xFFFFFFFFu, total, 1);
      total += __shfl_xor_sync(0xFFFFFFFFu, total, 2);
      if (lane % 4 == 0) tokens.key_intra[row + 8 * half] = total;
    }
  }

  /// Makes dv of one head, and adds its weights to `sum`. why K dS first: b is summed while V dOt
  /// is made, and At dO adds to it.
  __device__ void make_head(const Position& at, const float (&keys)[32], float (&sum)[32],
                            float (&dv)[32]) const {
    const Stage& stage = shared.stages[at.stage];
    Tokens& tokens = shared.tokens[at.stage];
    float values[32];
    std::uint32_t a[4][4];
    shared.full[at.stage].wait(at.parity);
    shared.state_made[at.stage].wait(at.parity);
    wgmma_begin();
    multiply_by_turned_state<Config>(dv, shared.k, stage.gradient);
    multiply_rows<Element, Config::kValueSteps>(values, stage.v, stage.d_o);
    wgmma_wait<1>();
    fence_registers(dv);
    scale_rows(dv, tokens.decay.from_behind);
    sum_rows<Element>(stage.v, dv, tokens.key_state);
    wgmma_wait<0>();
    fence_registers(values);
    weigh(keys, values, tokens, a, sum);
    fence_registers(dv);
    wgmma_begin();
    add_tokens<Element>(dv, a, stage.d_o);
    wgmma_wait<0>();
    hold_operand(a);
    fence_registers(dv);
  }

  /// Adds dv of the parts of K before. why not by TMA, which can add to memory: both would be
  /// rounded first.
  __device__ void add_earlier(const Position& at, float (&dv)[32]) const {
    shared.earlier[at.stage].wait(at.parity);
#pragma unroll
    for (int step = 0; step < Config::kValueSteps; ++step) {
      std::uint32_t packed[4];
      get_columns<64>(shared.stages[at.stage].other, step, 0, packed);
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float2 pair = unpack_pair<Element>(packed[i]);
        dv[8 * step + 2 * i] += pair.x;
        dv[8 * step + 2 * i + 1] += pair.y;
      }
    }
  }

  __device__ void run() const {
    Position at;
    for (unsigned item = first_item(); item < group_items(params); item += gridDim.x) {
      float keys[32], sum[32] = {};
      shared.full[at.stage].wait(at.parity);
      make_keys(keys);
#pragma unroll 1
      for (int member = 0; member < params.members; ++member, at.advance()) {
        float dv[32];
        make_head(at, keys, sum, dv);
        if constexpr (Config::kAdds) add_earlier(at, dv);
        shared.values_read[at.stage].wait(at.parity);
        sync_warpgroup(Config::kScoresSync);  // no warp reads v any more
        put_rows<Element>(dv, shared.stages[at.stage].v);
        fence_shared_for_async_proxy();
        shared.made[at.stage].arrive();
      }
      cutlass::arch::NamedBarrier::sync(2 * Config::kRoleThreads, Config::kOtherRead);
      const float scale = params.problem.forward.scale;
#pragma unroll
      for (float& weight : sum) weight *= scale;
      put_rows<Element>(sum, shared.other);
      fence_shared_for_async_proxy();
      cutlass::arch::NamedBarrier::arrive(2 * Config::kRoleThreads, Config::kWeightsMade);
    }
  }
};

}  // namespace tandem::cuda::gla
