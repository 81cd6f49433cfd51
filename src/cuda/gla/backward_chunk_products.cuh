// The products role of gla_chunk_gradients_kernel: a chunk's gradients, from its panels into them.
#pragma once

#include "cuda/gla/backward_chunk_shared.cuh"
#include "cuda/gla/state_elements.cuh"
#include "cuda/parts/fragment.cuh"
#include "cuda/parts/warp_sums.cuh"
#include "cuda/parts/wgmma.cuh"

namespace tandem::cuda {

/// The A operand of the contraction steps over a chunk's tokens.
using TokenOperand = std::uint32_t[4][4];

/// Rounds scale D (.) of both score tiles [j][i] to At and Wt, and keeps Wt as a panel too.
template <class Element>
__device__ void weigh_scores(const float (&keys)[32], const float (&values)[32],
                             const float (&log2_sum)[64], float scale, TokenOperand& a,
                             TokenOperand& w, char* panel) {
  const int row = fragment_row();
  const int own_step =
      threadIdx.x % 128 / 32;  // the 16 columns on the diagonal of this warp's rows
  const float sum[2] = {log2_sum[row], log2_sum[row + 8]};
#pragma unroll
  for (int step = 0; step < 4; ++step) {
    float of_keys[8] = {}, of_values[8] = {};
    if (step >= own_step) {
#pragma unroll
      for (int i = 0; i < 8; i += 2) {
        const int half = i / 2 % 2;  // rows `row` and `row + 8`
        const int column = fragment_column(2 * step + i / 4);
        const float2 sum_i = *reinterpret_cast<const float2*>(&log2_sum[column]);
        const float factor[2] = {scale * fast_exp2(sum_i.x - sum[half]),
                                 scale * fast_exp2(sum_i.y - sum[half])};
#pragma unroll
        for (int n = 0; n < 2; ++n) {
          // why a select of the product: 0 * NaN.
          const bool reaches = step != own_step || column + n >= row + 8 * half;
          of_keys[i + n] = reaches ? factor[n] * keys[8 * step + i + n] : 0.0f;
          of_values[i + n] = reaches ? factor[n] * values[8 * step + i + n] : 0.0f;
        }
      }
    }
    accumulator_to_operand<Element>(of_keys, 0, a[step]);
    accumulator_to_operand<Element>(of_values, 0, w[step]);
    store_rows(panel, step, w[step]);
  }
}

/// Rows of an accumulator times the factors of their tokens.
__device__ inline void scale_rows(float (&acc)[32], const float (&factors)[64]) {
  const float factor[2] = {factors[fragment_row()], factors[fragment_row() + 8]};
#pragma unroll
  for (int i = 0; i < 32; ++i) acc[i] *= factor[i / 2 % 2];
}

/// Rounds an accumulator into a panel.
template <class Element>
__device__ void put_rows(const float (&acc)[32], char* panel) {
#pragma unroll
  for (int step = 0; step < 4; ++step) {
    std::uint32_t packed[4];
    accumulator_to_operand<Element>(acc, step, packed);
    store_rows(panel, step, packed);
  }
}

/// sums[token] = the sum over columns of x (.) o, x being a panel.
template <class Element>
__device__ void sum_rows(const char* x, const float (&o)[32], float (&sums)[64]) {
  const int row = fragment_row();
  float own[2][4] = {};  // of two rows; why four: a chain of 32 additions is 130 cycles
#pragma unroll
  for (int i = 0; i < 16; ++i) {
    const char* at = x + panel_offset(row + i % 2 * 8, i / 2) + threadIdx.x % 4 * 4;
    const float2 pair = unpack_pair<Element>(*reinterpret_cast<const std::uint32_t*>(at));
    own[i % 2][i / 2 % 2] += pair.x * o[2 * i];
    own[i % 2][2 + i / 2 % 2] += pair.y * o[2 * i + 1];
  }
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    float sum = own[half][0] + own[half][1] + (own[half][2] + own[half][3]);
    sum += __shfl_xor_sync(0xFFFFFFFFu, sum, 1);
    sum += __shfl_xor_sync(0xFFFFFFFFu, sum, 2);
    if (threadIdx.x % 4 == 0) sums[row + 8 * half] = sum;
  }
}

/// This warp's share of <S, dS>.
template <class Element>
__device__ float multiply_states(const char* state, const char* gradient) {
  float sums[4] = {};
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const int at = (128 * i + threadIdx.x % 128) * 16;
    const uint4 x = *reinterpret_cast<const uint4*>(state + at);
    const uint4 y = *reinterpret_cast<const uint4*>(gradient + at);
    const std::uint32_t xs[4] = {x.x, x.y, x.z, x.w}, ys[4] = {y.x, y.y, y.z, y.w};
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const float2 a = unpack_pair<Element>(xs[j]), b = unpack_pair<Element>(ys[j]);
      sums[j] += a.x * b.x;
      sums[j] += a.y * b.y;
    }
  }
  return sum_warp(sums[0] + sums[1] + (sums[2] + sums[3]));
}

/// Descriptor of a panel's first contraction step; the next ones are `kNextStep` further. why not
/// one by one: with less code the compiler keeps the accumulators in registers.
template <Major kMajor>
__device__ std::uint64_t first_step(const char* panel) {
  return kMajor == Major::K ? k_major_descriptor(panel, 0) : mn_major_descriptor(panel, 0);
}
template <Major kMajor>
constexpr int kNextStep = (kMajor == Major::K ? 32 : 16 * kPanelRowBytes) / 16;

/// acc (+)= A B, both panels.
template <class Element, Major kA, Major kB>
__device__ void multiply_panels(float (&acc)[32], const char* a, const char* b, bool accumulate) {
  const std::uint64_t of_a = first_step<kA>(a), of_b = first_step<kB>(b);
#pragma unroll
  for (int step = 0; step < 4; ++step) {
    wgmma_ss<Element, 64, kA, kB>(acc, of_a + step * kNextStep<kA>, of_b + step * kNextStep<kB>,
                                  accumulate || step > 0);
  }
  wgmma_commit();
}

/// acc (+)= A B, B being a panel whose rows are contracted.
template <class Element>
__device__ void multiply_tokens(float (&acc)[32], const TokenOperand& a, const char* b,
                                bool accumulate) {
  const std::uint64_t of_b = first_step<Major::MN>(b);
#pragma unroll
  for (int step = 0; step < 4; ++step) {
    wgmma_rs<Element, 64, Major::MN>(acc, a[step], of_b + step * kNextStep<Major::MN>,
                                     accumulate || step > 0);
  }
  wgmma_commit();
}

/// A state from a panel, as an accumulator.
template <class Element>
__device__ void load_panel_rows(float (&acc)[32], const char* panel) {
  const int row = fragment_row();
#pragma unroll
  for (int i = 0; i < 16; ++i) {
    const char* at = panel + panel_offset(row + i % 2 * 8, i / 2) + threadIdx.x % 4 * 4;
    const float2 pair = unpack_pair<Element>(*reinterpret_cast<const std::uint32_t*>(at));
    acc[2 * i] = pair.x;
    acc[2 * i + 1] = pair.y;
  }
}

/// `to` = the state `from` passed over one chunk more: += the decayed columns of v times k.
template <class Element>
__device__ void pass_state(char* to, const char* from, const char* k, const char* v,
                           const ChunkDecay<64>& decay) {
  float state[32];
  TokenOperand values;
  load_panel_rows<Element>(state, from);
  load_decayed_values<Element, 0, 4>(values, v, decay.to_state);
  const float factor = decay.state_to_state;
#pragma unroll
  for (float& value : state) value *= factor;
  fence_registers(state);
  wgmma_begin();
  multiply_tokens<Element>(state, values, k, true);
  wgmma_wait<0>();
  fence_registers(state);
  put_rows<Element>(state, to);
}

/// A chunk's gradients, left in its panels, and its row sums. `group`: which of the pair.
template <class Element>
__device__ void make_gradients(ChunkGradientsShared::Stage& stage, int group, char* weights,
                               float scale, std::uint32_t parity) {
  auto& own = stage.chunks[group];
  auto& tokens = stage.tokens[group];
  TokenOperand a, w;
  float dv[32], dk[32], intra[32], dq[32];

  stage.inputs.wait(parity);
  {
    float(&keys)[32] = dv;
    float(&values)[32] = dk;
    wgmma_begin();
    multiply_panels<Element, Major::K, Major::K>(keys, own.k, own.q, false);
    multiply_panels<Element, Major::K, Major::K>(values, own.v, own.d_o, false);
    sync_warpgroup(1 + group);  // no warp's product reads the weights of the pair before
    wgmma_wait<0>();
    fence_registers(keys);
    fence_registers(values);
    weigh_scores<Element>(keys, values, tokens.decay.log2_sum, scale, a, w, weights);
  }
  stage.states.wait(parity);
  auto& other = stage.chunks[1 - group];
  if (group == 0) {
    pass_state<Element>(other.state, own.state, own.k, own.v, tokens.decay);
  } else {
    pass_state<Element>(other.state_gradient, own.state_gradient, own.q, own.d_o,
                        tokens.decay_behind);
  }
  fence_shared_for_async_proxy();
  cutlass::arch::NamedBarrier::sync(ChunkGradientsConfig::kProducts, 3);

  wgmma_begin();
  multiply_panels<Element, Major::K, Major::K>(dv, own.k, own.state_gradient, false);
  multiply_panels<Element, Major::K, Major::MN>(dk, own.v, own.state_gradient, false);
  multiply_tokens<Element>(intra, w, own.q, false);
  multiply_panels<Element, Major::K, Major::MN>(dq, own.d_o, own.state, false);
  const float flow = multiply_states<Element>(own.state, own.state_gradient);
  if (threadIdx.x % 32 == 0) tokens.flows[threadIdx.x % 128 / 32] = flow;
  wgmma_wait<3>();
  fence_registers(dv);
  scale_rows(dv, tokens.decay_behind.from_state);
  wgmma_begin();
  multiply_tokens<Element>(dv, a, own.d_o, true);
  wgmma_wait<1>();
  fence_registers(dk);
  fence_registers(intra);
  fence_registers(dq);
  scale_rows(dq, tokens.decay.from_state);
  wgmma_begin();
  multiply_panels<Element, Major::MN, Major::MN>(dq, weights, own.k, true);
  scale_rows(dk, tokens.decay_behind.from_state);
  sum_rows<Element>(own.k, dk, tokens.key_state_rows);
  sum_rows<Element>(own.k, intra, tokens.key_rows);
#pragma unroll
  for (int i = 0; i < 32; ++i) dk[i] += intra[i];
  wgmma_wait<0>();
  fence_registers(dv);
  fence_registers(dq);
  sum_rows<Element>(own.q, dq, tokens.query_rows);
  sync_warpgroup(1 + group);  // nothing reads the panels any more
  put_rows<Element>(dv, own.state_gradient);
  put_rows<Element>(dk, own.v);
  put_rows<Element>(dq, own.q);
  fence_shared_for_async_proxy();
  stage.made.arrive();
}

}  // namespace tandem::cuda
