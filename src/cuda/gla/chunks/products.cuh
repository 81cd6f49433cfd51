// The products role of gla_chunk_gradients_kernel: a chunk's gradients, from its panels into them.
#pragma once

#include "cuda/gla/chunks/shared.cuh"
#include "cuda/gla/common/products.cuh"
#include "cuda/gla/common/state_elements.cuh"
#include "cuda/parts/fragment.cuh"
#include "cuda/parts/warp_sums.cuh"
#include "cuda/parts/wgmma.cuh"

namespace tandem::cuda::gla {

/// 64 columns of this thread's rows, in 16 bits: the A operand of a contraction over them, or 64
/// columns of an accumulator.
using PackedRows = std::uint32_t[4][4];

/// Rounds scale D (.) both score tiles [j][i]: to At in registers, to Wt in a panel. Has no
/// branches, since it runs beside a product.
template <class Element>
__device__ void weigh_scores(const float (&keys)[32], const float (&values)[32],
                             const float (&log2_sum)[64], float scale, PackedRows& a, char* w) {
  const int row = fragment_row();
  const float sum[2] = {log2_sum[row], log2_sum[row + 8]};
#pragma unroll
  for (int step = 0; step < 4; ++step) {
    float of_keys[8], of_values[8];
#pragma unroll
    for (int i = 0; i < 8; i += 2) {
      const int half = i / 2 % 2;  // rows `row` and `row + 8`
      const int column = fragment_column(2 * step + i / 4);
      const float2 sum_i = *reinterpret_cast<const float2*>(&log2_sum[column]);
      const float factor[2] = {scale * fast_exp2(sum_i.x - sum[half]),
                               scale * fast_exp2(sum_i.y - sum[half])};
#pragma unroll
      for (int n = 0; n < 2; ++n) {
        // why a select of the product: 0 * NaN, and factors before the diagonal may be inf.
        const bool reaches = column + n >= row + 8 * half;
        of_keys[i + n] = reaches ? factor[n] * keys[8 * step + i + n] : 0.0f;
        of_values[i + n] = reaches ? factor[n] * values[8 * step + i + n] : 0.0f;
      }
    }
    accumulator_to_operand<Element>(of_keys, 0, a[step]);
    std::uint32_t packed[4];
    accumulator_to_operand<Element>(of_values, 0, packed);
    store_rows(w, step, packed);
  }
}

__device__ inline void get_rows(const char* panel, PackedRows& rows) {
#pragma unroll
  for (int step = 0; step < 4; ++step) load_rows(panel, step, rows[step]);
}

/// Calls visit(accumulator index, two values).
template <class Element, class Visit>
__device__ void for_each_pair(const PackedRows& rows, Visit visit) {
#pragma unroll
  for (int i = 0; i < 16; ++i) visit(2 * i, unpack_pair<Element>(rows[i / 4][i % 4]));
}

/// sums[token] = the sum over columns of x (.) o.
template <class Element>
__device__ void sum_rows(const PackedRows& x, const float (&o)[32], float (&sums)[64]) {
  float own[2][4] = {};  // of two rows; why four: a chain of 32 additions is 130 cycles
  for_each_pair<Element>(x, [&](int i, float2 pair) {
    float(&of_row)[4] = own[i / 2 % 2];
    of_row[i / 4 % 2] += pair.x * o[i];
    of_row[2 + i / 4 % 2] += pair.y * o[i + 1];
  });
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    float sum = own[half][0] + own[half][1] + (own[half][2] + own[half][3]);
    sum += __shfl_xor_sync(0xFFFFFFFFu, sum, 1);
    sum += __shfl_xor_sync(0xFFFFFFFFu, sum, 2);
    if (threadIdx.x % 4 == 0) sums[fragment_row() + 8 * half] = sum;
  }
}

/// Returns this warp's share of <S, dS>.
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

/// Descriptor of a panel's first contraction step; each next one lies `kNextStep` further. why not
/// a descriptor per step: with less code the compiler keeps the accumulators in registers.
template <Major kMajor>
__device__ std::uint64_t first_step(const char* panel) {
  return kMajor == Major::K ? k_major_descriptor(panel, 0) : mn_major_descriptor(panel, 0);
}
template <Major kMajor>
constexpr int kNextStep = (kMajor == Major::K ? 32 : 16 * kPanelRowBytes) / 16;

/// Issues acc (+)= A B, A and B being panels.
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

/// Issues acc (+)= A B, B being a panel whose rows are contracted.
template <class Element>
__device__ void multiply_tokens(float (&acc)[32], const PackedRows& a, const char* b,
                                bool accumulate) {
  const std::uint64_t of_b = first_step<Major::MN>(b);
#pragma unroll
  for (int step = 0; step < 4; ++step) {
    wgmma_rs<Element, 64, Major::MN>(acc, a[step], of_b + step * kNextStep<Major::MN>,
                                     accumulate || step > 0);
  }
  wgmma_commit();
}

/// The products role: a warpgroup makes the gradients of one chunk of every chunk pair, and its row
/// sums. It leaves gradients in the chunk's panels.
template <class Config>
struct ChunkProducts {
  const ChunkBackwardParams& params;
  ChunkGradientsShared& shared;
  int which;  // which chunk of the pair

  using Element = typename Config::Element;
  using Stage = ChunkGradientsShared::Stage;

  __device__ char* weights() const { return shared.weights[which]; }
  __device__ void sync() const { sync_warpgroup(1 + which); }

  /// Makes At and Wt from the scores Kt Q and V dOt.
  __device__ void make_weights(const Stage& stage, PackedRows& a) const {
    const auto& own = stage.chunks[which];
    float keys[32], values[32];
    wgmma_begin();
    multiply_panels<Element, Major::K, Major::K>(keys, own.k, own.q, false);
    multiply_panels<Element, Major::K, Major::K>(values, own.v, own.d_o, false);
    wgmma_wait<0>();
    fence_registers(keys);
    fence_registers(values);
    weigh_scores<Element>(keys, values, stage.tokens[which].decay.log2_sum,
                          params.problem.forward.scale, a, weights());
    fence_shared_for_async_proxy();
    sync();
  }

  __device__ void run() const {
    constexpr int kStages = ChunkGradientsShared::kStages;
    const unsigned count = ChunkPairs<Config>(params).count;
    RingPosition<kStages> now;
    for (unsigned n = 0; n < count; ++n, now.advance()) {
      Stage& stage = shared.stages[now.stage];
      auto& own = stage.chunks[which];
      auto& tokens = stage.tokens[which];
      PackedRows a;
      stage.inputs.wait(now.parity);
      make_weights(stage, a);
      stage.all_states.wait(now.parity);

      float dv[32], dk[32], intra[32], dq[32];
      wgmma_begin();
      multiply_panels<Element, Major::K, Major::K>(dv, own.k, own.state_gradient, false);
      multiply_panels<Element, Major::K, Major::MN>(dk, own.v, own.state_gradient, false);
      multiply_panels<Element, Major::K, Major::MN>(intra, weights(), own.q, false);
      multiply_panels<Element, Major::K, Major::MN>(dq, own.d_o, own.state, false);
      const float flow = multiply_states<Element>(own.state, own.state_gradient);
      if (threadIdx.x % 32 == 0) tokens.flows[threadIdx.x % 128 / 32] = flow;
      wgmma_wait<3>();
      fence_registers(dv);
      scale_rows(dv, tokens.decay_behind.from_state);
      fence_registers(dv);
      wgmma_begin();
      multiply_tokens<Element>(dv, a, own.d_o, true);
      PackedRows k;
      get_rows(own.k, k);
      wgmma_wait<1>();
      fence_registers(dk);
      fence_registers(intra);
      fence_registers(dq);
      scale_rows(dq, tokens.decay.from_state);
      fence_registers(dq);
      wgmma_begin();
      multiply_panels<Element, Major::MN, Major::MN>(dq, weights(), own.k, true);
      scale_rows(dk, tokens.decay_behind.from_state);
      sum_rows<Element>(k, dk, tokens.key_state_rows);
      sum_rows<Element>(k, intra, tokens.key_rows);
#pragma unroll
      for (int i = 0; i < 32; ++i) dk[i] += intra[i];
      sync();  // no warp reads v any more
      put_rows<Element>(dk, own.v);
      PackedRows q;
      get_rows(own.q, q);
      wgmma_wait<0>();
      hold_operand(a);
      fence_registers(dv);
      fence_registers(dq);
      sum_rows<Element>(q, dq, tokens.query_rows);
      sync();  // nothing reads the panels any more
      put_rows<Element>(dv, which == 0 ? own.state_gradient : own.state);
      put_rows<Element>(dq, own.q);
      fence_shared_for_async_proxy();
      stage.made.arrive();
    }
  }
};

}  // namespace tandem::cuda::gla
