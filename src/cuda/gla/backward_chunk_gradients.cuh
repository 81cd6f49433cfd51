// gla_chunk_gradients_kernel: all gradients of one chunk of 64 tokens of one head.
//
// With S before the chunk and dS behind it from gla_chunk_states_kernel, chunks are independent;
// a CTA of one warpgroup makes one. G is the inclusive sum of its decays, D_ij = 2^(G_i - G_j) for
// j <= i, f_j = the factor from token j to dS (docs/ops/gla_backward.md has the derivation):
//   At_ji = scale D_ij (k_j . q_i)                          [C,C]
//   Wt_ji = scale D_ij (v_j . do_i)                         [C,C]
//   dV    = f (K dS)    + At dO                             [C,V]
//   dK    = f (V dS^T)  + Wt Q                              [C,K]
//   dQ    = scale 2^G_i (dO S^T) + W K                      [C,K]
//   dg_t  = F + sum of b before t + sum of a - c from t on,  F = 2^G_C <S, dS>, a = q . dq,
//           b and c = k . the two parts of dk, all in fp32 (decay_dots.h)
// At and Wt are register operands of the second products; Wt is also kept as a panel, so that dQ
// and dK use the same rounded weights and a cancels against c to the last bit.
//
//   copies  ~q k v do~             ~S dS~
//   tensor            =K Qt=V dOt=          =K dS=V dSt=At dO=Wt Q=       =dO St=W K=
//   threads -decays-              -D, mask-   -F-      -scale-    -b, c, store-    -a, store-
// Three CTAs per SM hide each other's waits. q, k, v, do are loaded and the weights formed while
// the kernel before this one, gla_chunk_states_kernel, may still run.
//
// Floor: q, k, v, do read, dq, dk, dv written, and two panels of 8 KB read, per chunk.
// Shared memory: 68 KB. Registers: 168 at most.
#pragma once

#include "cuda/gla/backward_chunks.h"
#include "cuda/gla/decay_gradient.cuh"
#include "cuda/parts/fragment.cuh"
#include "cuda/parts/stream_order.cuh"
#include "cuda/parts/tma.cuh"
#include "cuda/parts/wgmma.cuh"

namespace tandem::cuda {

struct ChunkGradientsShared {
  using Panel = char[panel_bytes(64)];

  alignas(1024) Panel q;
  alignas(1024) Panel k;
  alignas(1024) Panel v;
  alignas(1024) Panel d_o;
  alignas(1024) Panel state;           // [V,K]
  alignas(1024) Panel state_gradient;  // [V,K]
  alignas(1024) Panel weights;         // Wt
  alignas(1024) Panel dq;
  ChunkDecay<64> decay;         // from S to tokens
  ChunkDecay<64> decay_behind;  // from dS to tokens
  alignas(16) float log_decay[64];
  float query_rows[64];      // a
  float key_state_rows[64];  // b
  float key_rows[64];        // c
  float flows[4];            // a warp's share of <S, dS>
  Barrier inputs;
  Barrier states;
};

/// The chunk of a CTA.
struct GradientChunk {
  int batch;
  int head;
  int index;           // in the sequence
  int begin;           // token
  std::int64_t place;  // [B,H,chunks]

  __device__ explicit GradientChunk(const ChunkBackwardParams& params) {
    const int H = params.problem.forward.H;
    unsigned at = blockIdx.x;  // why heads innermost: they are neighbours in memory
    head = static_cast<int>(at % H);
    at /= H;
    index = static_cast<int>(at % params.chunks);
    batch = static_cast<int>(at / params.chunks);
    begin = 64 * index;
    place = (std::int64_t{batch} * H + head) * params.chunks + index;
  }
  __device__ TileCoordinate tile() const { return {0, head, begin, batch}; }
};

/// One warp: natural-log decays of the chunk, 0 where there is no token.
__device__ inline LogDecays load_log_decays(const DecayTensor& decay, const GradientChunk& chunk,
                                            std::int64_t T) {
  const auto of_token = [&](int offset) {
    const std::int64_t time = std::int64_t{chunk.begin} + offset;
    if (decay.data == nullptr || time >= T) return 0.0f;
    return decay.data[chunk.batch * decay.batch_stride + time * decay.time_stride +
                      chunk.head * decay.head_stride];
  };
  const int token = 2 * (threadIdx.x % 32);
  return {{of_token(token), of_token(token + 1)}, of_token(64)};
}

/// Operands of contraction steps over the chunk's tokens i: rows j of At or Wt.
using WeightOperand = std::uint32_t[4][4];

/// Rounds scale D (.) of both score tiles [j][i], and keeps Wt as a panel too.
template <class Element>
__device__ void weigh_scores(const float (&keys)[32], const float (&values)[32],
                             const float (&log2_sum)[64], float scale, WeightOperand& a,
                             WeightOperand& w, char* panel) {
  const int row = fragment_row();
  const int own_step = threadIdx.x / 32;  // the 16 columns on the diagonal of this warp's rows
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

/// sums[n][token] = the sum over columns of x (.) o[n], x being a panel.
template <class Element, int kCount>
__device__ void sum_rows(const char* x, const float (*const (&o)[kCount])[32],
                         float* const (&sums)[kCount]) {
  const int row = fragment_row();
  float own[kCount][2] = {};
#pragma unroll
  for (int block = 0; block < 8; ++block) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const char* at = x + panel_offset(row + 8 * half, block) + threadIdx.x % 4 * 4;
      const float2 pair = unpack_pair<Element>(*reinterpret_cast<const std::uint32_t*>(at));
#pragma unroll
      for (int n = 0; n < kCount; ++n) {
        own[n][half] += pair.x * (*o[n])[4 * block + 2 * half];
        own[n][half] += pair.y * (*o[n])[4 * block + 2 * half + 1];
      }
    }
  }
#pragma unroll
  for (int n = 0; n < kCount; ++n) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float sum = own[n][half];
      sum += __shfl_xor_sync(0xFFFFFFFFu, sum, 1);
      sum += __shfl_xor_sync(0xFFFFFFFFu, sum, 2);
      if (threadIdx.x % 4 == 0) sums[n][row + 8 * half] = sum;
    }
  }
}

/// This warp's share of <S, dS>.
template <class Element>
__device__ float multiply_states(const char* state, const char* gradient) {
  float sum = 0.0f;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const int at = (128 * i + threadIdx.x) * 16;
    const uint4 x = *reinterpret_cast<const uint4*>(state + at);
    const uint4 y = *reinterpret_cast<const uint4*>(gradient + at);
    const std::uint32_t xs[4] = {x.x, x.y, x.z, x.w}, ys[4] = {y.x, y.y, y.z, y.w};
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const float2 a = unpack_pair<Element>(xs[j]), b = unpack_pair<Element>(ys[j]);
      sum += a.x * b.x;
      sum += a.y * b.y;
    }
  }
  return sum_warp(sum);
}

/// acc (+)= A B, both panels.
template <class Element, Major kA, Major kB>
__device__ void multiply_panels(float (&acc)[32], const char* a, const char* b, bool accumulate) {
#pragma unroll
  for (int step = 0; step < 4; ++step) {
    const std::uint64_t of_a =
        kA == Major::K ? k_major_descriptor(a, step) : mn_major_descriptor(a, step);
    const std::uint64_t of_b =
        kB == Major::K ? k_major_descriptor(b, step) : mn_major_descriptor(b, step);
    wgmma_ss<Element, 64, kA, kB>(acc, of_a, of_b, accumulate || step > 0);
  }
  wgmma_commit();
}

/// acc (+)= A B, B being a panel whose rows are contracted.
template <class Element>
__device__ void multiply_weights(float (&acc)[32], const WeightOperand& a, const char* b,
                                 bool accumulate) {
#pragma unroll
  for (int step = 0; step < 4; ++step) {
    wgmma_rs<Element, 64, Major::MN>(acc, a[step], mn_major_descriptor(b, step),
                                     accumulate || step > 0);
  }
  wgmma_commit();
}

/// One warp: d_log_decay of the chunk's tokens, or their sum for a constant decay.
__device__ inline void differentiate_decay(const ChunkBackwardParams& params,
                                           const ChunkGradientsShared& shared,
                                           const GradientChunk& chunk) {
  const DecayGradient& to = params.problem.d_log_decay;
  if (to.data == nullptr) return;
  const int token = 2 * (threadIdx.x % 32);
  const auto pair = [&](const float(&rows)[64]) {
    return *reinterpret_cast<const float2*>(&rows[token]);
  };
  const float2 a = pair(shared.query_rows), b = pair(shared.key_state_rows);
  const float2 c = pair(shared.key_rows), log_decay = pair(shared.log_decay);
  const auto& behind = shared.decay_behind;
  const float flow = (shared.flows[0] + shared.flows[1] + (shared.flows[2] + shared.flows[3])) *
                     (behind.state_to_state * fast_exp2(-behind.log2_sum[0]));
  const float2 dg =
      decay_gradient_from_flow(flow, {a.x - c.x, a.y - c.y}, b, inclusive_sum(b.x + b.y));
  const std::int64_t left = params.problem.forward.T - chunk.begin;
  const float first = token < left ? unless_forgotten(dg.x, log_decay.x) : 0.0f;
  const float second = token + 1 < left ? unless_forgotten(dg.y, log_decay.y) : 0.0f;
  if (to.per_token) {
    if (token < left) *gradient_at(to, chunk.batch, chunk.begin + token, chunk.head) = first;
    if (token + 1 < left) {
      *gradient_at(to, chunk.batch, chunk.begin + token + 1, chunk.head) = second;
    }
  } else {
    const float sum = sum_warp(first + second);
    if (token == 0) params.decay_sums[chunk.place] = sum;
  }
}

template <class Element>
__global__ __launch_bounds__(128, 3) void gla_chunk_gradients_kernel(
    const __grid_constant__ ChunkBackwardParams params) {
  extern __shared__ __align__(1024) char shared_memory[];
  auto& shared = *reinterpret_cast<ChunkGradientsShared*>(shared_memory);
  constexpr int kPanelBytes = panel_bytes(64);
  const int warp = __shfl_sync(0xFFFFFFFFu, threadIdx.x / 32, 0);
  const GlaForwardProblem& problem = params.problem.forward;
  const GradientChunk chunk(params);

  // why before the stream is followed: these came before the kernel before this one.
  if (threadIdx.x == 0) {
    shared.inputs.init(1);
    shared.states.init(1);
    fence_barriers_initialised();
    shared.inputs.arrive_and_expect(4 * kPanelBytes);
    load_panel(params.k_map, shared.inputs, shared.k, chunk.tile());
    load_panel(params.q_map, shared.inputs, shared.q, chunk.tile());
    load_panel(params.v_map, shared.inputs, shared.v, chunk.tile());
    load_panel(params.d_o_map, shared.inputs, shared.d_o, chunk.tile());
  }
  if (warp == 1) {
    const LogDecays log_decay = load_log_decays(problem.log_decay, chunk, problem.T);
    *reinterpret_cast<float2*>(&shared.log_decay[2 * (threadIdx.x % 32)]) = log_decay.own;
    compute_chunk_decay<false>(log_decay, problem.scale, shared.decay);
    compute_chunk_decay<true>(log_decay, problem.scale, shared.decay_behind);
  }
  __syncthreads();
  shared.inputs.wait(0);

  WeightOperand a, w;
  {
    float keys[32], values[32];
    wgmma_begin();
    multiply_panels<Element, Major::K, Major::K>(keys, shared.k, shared.q, false);
    multiply_panels<Element, Major::K, Major::K>(values, shared.v, shared.d_o, false);
    follow_stream();
    if (threadIdx.x == 0) {
      const std::int64_t at = chunk.place * kPanelBytes;
      shared.states.arrive_and_expect(2 * kPanelBytes);
      cute::SM90_BULK_COPY_G2S::copy(static_cast<const char*>(params.state_gradients) + at,
                                     &shared.states.word, shared.state_gradient, kPanelBytes);
      cute::SM90_BULK_COPY_G2S::copy(static_cast<const char*>(params.states) + at,
                                     &shared.states.word, shared.state, kPanelBytes);
    }
    wgmma_wait<0>();
    fence_registers(keys);
    fence_registers(values);
    weigh_scores<Element>(keys, values, shared.decay.log2_sum, problem.scale, a, w, shared.weights);
  }
  fence_shared_for_async_proxy();
  __syncthreads();

  float dv[32], dk[32], intra[32];
  shared.states.wait(0);
  wgmma_begin();
  multiply_panels<Element, Major::K, Major::K>(dv, shared.k, shared.state_gradient, false);
  multiply_panels<Element, Major::K, Major::MN>(dk, shared.v, shared.state_gradient, false);
  multiply_weights<Element>(intra, w, shared.q, false);
  const float flow = multiply_states<Element>(shared.state, shared.state_gradient);
  if (threadIdx.x % 32 == 0) shared.flows[warp] = flow;
  wgmma_wait<2>();
  fence_registers(dv);
  scale_rows(dv, shared.decay_behind.from_state);
  wgmma_begin();
  multiply_weights<Element>(dv, a, shared.d_o, true);
  wgmma_wait<1>();
  fence_registers(dk);
  fence_registers(intra);
  scale_rows(dk, shared.decay_behind.from_state);
  sum_rows<Element, 2>(shared.k, {&dk, &intra}, {shared.key_state_rows, shared.key_rows});
#pragma unroll
  for (int i = 0; i < 32; ++i) dk[i] += intra[i];
  wgmma_wait<0>();
  fence_registers(dv);
  __syncthreads();  // no warp's product reads V or dS any more
  wgmma_begin();
  float(&dq)[32] = intra;
  multiply_panels<Element, Major::K, Major::MN>(dq, shared.d_o, shared.state, false);
  put_rows<Element>(dv, shared.state_gradient);
  put_rows<Element>(dk, shared.v);
  wgmma_wait<0>();
  fence_registers(dq);
  scale_rows(dq, shared.decay.from_state);
  wgmma_begin();
  multiply_panels<Element, Major::MN, Major::MN>(dq, shared.weights, shared.k, true);
  wgmma_wait<0>();
  fence_registers(dq);
  put_rows<Element>(dq, shared.dq);
  sum_rows<Element, 1>(shared.q, {&dq}, {shared.query_rows});
  fence_shared_for_async_proxy();
  __syncthreads();
  if (threadIdx.x == 0) {
    store_panel(params.dv_map, shared.state_gradient, chunk.tile());
    store_panel(params.dk_map, shared.v, chunk.tile());
    store_panel(params.dq_map, shared.dq, chunk.tile());
    wait_stores_read();
  } else if (warp == 1) {
    differentiate_decay(params, shared, chunk);
  }
}

}  // namespace tandem::cuda
