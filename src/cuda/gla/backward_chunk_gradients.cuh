// gla_chunk_gradients_kernel: all gradients, a pair of chunks (128 tokens of one head) at a time.
//
// With S before a pair and dS behind it from gla_chunk_states_kernel, pairs are independent; a CTA
// takes every gridDim.x-th. First the states between the two chunks, as the walks would:
//   S  = 2^G_C S + (V 2^(G_C - G_j))^T K of the first chunk,  dS from q and do of the second
// Then each chunk of C = 64 tokens, G being the inclusive sum of its decays, D_ij = 2^(G_i - G_j)
// for j <= i, f_j the factor from token j to dS (docs/ops/gla_backward.md has the derivation):
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
// Role       threads        registers  work
//   copies   warp 0, one thread    56  in and out by TMA, two pairs ahead
//   decays   warp 1                56  factors of later pairs, dg
//   products warpgroups 1, 2      224  a chunk of the pair each
//
//   copies    ~in: n+1~              ~out: n-1, in: n+1~
//   decays                           -dg of n-1, factors of n+1-
//   tensor    =K Qt=V dOt=     =S or dS between=  =K dS=V dSt=Wt Q=dO St=At dO=     =W K=
//   products              -D, mask-              -F-                    -scale, b, c-   -a, store-
// products wait for a stage's `inputs` (q, k, v, do, decays), `states`, and for each other once the
// states between their chunks are there; the others wait for `made` before they go on to the next.
// The first inputs are loaded, and weights formed, while gla_chunk_states_kernel may still run.
//
// Floor: q, k, v, do read, dq, dk, dv written, and two panels of 8 KB read, per pair.
// Numerics: as the walks', but for states between the chunks of a pair, which are rounded twice.
// Shared memory: 220 KB.
#pragma once

#include <cutlass/arch/reg_reconfig.h>

#include <cute/arch/copy_sm90_tma.hpp>

#include "cuda/gla/backward_chunks.h"
#include "cuda/gla/decay_gradient.cuh"
#include "cuda/gla/state_elements.cuh"
#include "cuda/parts/fragment.cuh"
#include "cuda/parts/ring.cuh"
#include "cuda/parts/stream_order.cuh"
#include "cuda/parts/tma.cuh"
#include "cuda/parts/wgmma.cuh"

namespace tandem::cuda {

struct ChunkGradientsShared {
  using Panel = char[panel_bytes(64)];
  static constexpr int kStages = 2;

  /// One chunk. Its gradients leave through panels that are not needed any more.
  struct Chunk {
    alignas(1024) Panel q;  // then dq
    alignas(1024) Panel k;
    alignas(1024) Panel v;  // then dk
    alignas(1024) Panel d_o;
    alignas(1024) Panel state;           // [V,K], before the chunk
    alignas(1024) Panel state_gradient;  // [V,K], behind it; then dv
  };
  /// Of a chunk, beside the panels.
  struct Tokens {
    ChunkDecay<64> decay;         // from S to tokens, and into the next S
    ChunkDecay<64> decay_behind;  // from dS to tokens, and into the dS before
    alignas(16) float log_decay[64];
    float query_rows[64];      // a
    float key_state_rows[64];  // b
    float key_rows[64];        // c
    float flows[4];            // a warp's share of <S, dS>
  };
  /// One pair.
  struct Stage {
    Chunk chunks[2];
    Tokens tokens[2];
    Barrier inputs;
    Barrier states;
    Barrier made;
  };
  Stage stages[kStages];
  alignas(1024) Panel weights[2];  // Wt
};

/// Threads of the roles, and registers per thread after setmaxnreg.
struct ChunkGradientsConfig {
  static constexpr int kThreads = 384;
  static constexpr int kProducts = 256;
  static constexpr int kMemoryRegisters = 56;
  static constexpr int kProductRegisters = 224;
  static_assert(kMemoryRegisters + 2 * kProductRegisters <= 65536 / kThreads / 8 * 8 * 3);
};

/// Where a pair of chunks lies.
struct ChunkPair {
  int batch;
  int head;
  int begin;           // token
  std::int64_t place;  // [B,H,pairs]

  __device__ TileCoordinate tile(int which) const { return {0, head, begin + 64 * which, batch}; }
};

/// Heads are innermost: they are neighbours in memory.
__device__ inline ChunkPair find_pair(const ChunkBackwardParams& params, unsigned at) {
  const unsigned H = params.problem.forward.H, pairs = params.pairs;
  const unsigned of_head = at / H, batch = of_head / pairs;
  ChunkPair pair;
  pair.head = static_cast<int>(at - of_head * H);
  pair.batch = static_cast<int>(batch);
  const unsigned index = of_head - batch * pairs;
  pair.begin = static_cast<int>(128 * index);
  pair.place = std::int64_t{batch * H + pair.head} * pairs + index;
  return pair;
}

/// One warp: natural-log decays of the chunk, 0 where there is no token.
__device__ inline LogDecays load_log_decays(const DecayTensor& decay, const ChunkPair& pair,
                                            int which, std::int64_t T) {
  const float* head = decay.data + pair.batch * decay.batch_stride + pair.head * decay.head_stride;
  const auto of_token = [&](int offset) {
    const std::int64_t time = std::int64_t{pair.begin} + 64 * which + offset;
    if (decay.data == nullptr || time >= T) return 0.0f;
    return head[time * decay.time_stride];
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

/// Descriptor of a panel's first contraction step; the next ones are `kNextStep` further.
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
__device__ void multiply_weights(float (&acc)[32], const WeightOperand& a, const char* b,
                                 bool accumulate) {
  const std::uint64_t of_b = first_step<Major::MN>(b);
#pragma unroll
  for (int step = 0; step < 4; ++step) {
    wgmma_rs<Element, 64, Major::MN>(acc, a[step], of_b + step * kNextStep<Major::MN>,
                                     accumulate || step > 0);
  }
  wgmma_commit();
}

/// One warp: d_log_decay of the chunk's tokens, or their sum for a constant decay.
__device__ inline void differentiate_decay(const ChunkBackwardParams& params,
                                           const ChunkGradientsShared::Tokens& tokens,
                                           const ChunkPair& pair, int which) {
  const DecayGradient& to = params.problem.d_log_decay;
  if (to.data == nullptr) return;
  const int token = 2 * (threadIdx.x % 32);
  const auto own = [&](const float(&rows)[64]) {
    return *reinterpret_cast<const float2*>(&rows[token]);
  };
  const int begin = pair.begin + 64 * which;
  const float2 a = own(tokens.query_rows), b = own(tokens.key_state_rows);
  const float2 c = own(tokens.key_rows), log_decay = own(tokens.log_decay);
  const auto& behind = tokens.decay_behind;
  const float flow = (tokens.flows[0] + tokens.flows[1] + (tokens.flows[2] + tokens.flows[3])) *
                     (behind.state_to_state * fast_exp2(-behind.log2_sum[0]));
  const float2 dg =
      decay_gradient_from_flow(flow, {a.x - c.x, a.y - c.y}, b, inclusive_sum(b.x + b.y));
  const std::int64_t left = params.problem.forward.T - begin;
  const float first = token < left ? unless_forgotten(dg.x, log_decay.x) : 0.0f;
  const float second = token + 1 < left ? unless_forgotten(dg.y, log_decay.y) : 0.0f;
  if (to.per_token) {
    if (token < left) *gradient_at(to, pair.batch, begin + token, pair.head) = first;
    if (token + 1 < left) {
      *gradient_at(to, pair.batch, begin + token + 1, pair.head) = second;
    }
  } else {
    const float sum = sum_warp(first + second);
    if (token == 0) params.decay_sums[2 * pair.place + which] = sum;
  }
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
  WeightOperand values;
  load_panel_rows<Element>(state, from);
  load_decayed_values<Element, 0, 4>(values, v, decay.to_state);
  const float factor = decay.state_to_state;
#pragma unroll
  for (float& value : state) value *= factor;
  fence_registers(state);
  wgmma_begin();
  multiply_weights<Element>(state, values, k, true);
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
  WeightOperand a, w;
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
  multiply_weights<Element>(intra, w, own.q, false);
  multiply_panels<Element, Major::K, Major::MN>(dq, own.d_o, own.state, false);
  const float flow = multiply_states<Element>(own.state, own.state_gradient);
  if (threadIdx.x % 32 == 0) tokens.flows[threadIdx.x % 128 / 32] = flow;
  wgmma_wait<3>();
  fence_registers(dv);
  scale_rows(dv, tokens.decay_behind.from_state);
  wgmma_begin();
  multiply_weights<Element>(dv, a, own.d_o, true);
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

/// The n-th pair of a CTA.
__device__ inline std::int64_t nth_pair(std::int64_t n) { return blockIdx.x + n * gridDim.x; }

/// One thread: copies in and out, two pairs ahead.
struct ChunkCopies {
  const ChunkBackwardParams& params;
  ChunkGradientsShared& shared;

  using Stage = ChunkGradientsShared::Stage;
  static constexpr int kPanelBytes = panel_bytes(64);
  static constexpr int kStages = ChunkGradientsShared::kStages;

  /// Into panels that no gradient leaves through.
  __device__ void load_first_inputs(Stage& stage, const ChunkPair& pair) const {
    stage.inputs.arrive_and_expect(8 * kPanelBytes);
    for (int i = 0; i < 2; ++i) {
      load_panel(params.k_map, stage.inputs, stage.chunks[i].k, pair.tile(i));
      load_panel(params.d_o_map, stage.inputs, stage.chunks[i].d_o, pair.tile(i));
    }
  }
  __device__ void load_other_inputs(Stage& stage, const ChunkPair& pair) const {
    for (int i = 0; i < 2; ++i) {
      load_panel(params.q_map, stage.inputs, stage.chunks[i].q, pair.tile(i));
      load_panel(params.v_map, stage.inputs, stage.chunks[i].v, pair.tile(i));
    }
  }
  __device__ void load_states(Stage& stage, const ChunkPair& pair) const {
    const std::int64_t from = pair.place * kPanelBytes;
    stage.states.arrive_and_expect(2 * kPanelBytes);
    cute::SM90_BULK_COPY_G2S::copy(static_cast<const char*>(params.states) + from,
                                   &stage.states.word, stage.chunks[0].state, kPanelBytes);
    cute::SM90_BULK_COPY_G2S::copy(static_cast<const char*>(params.state_gradients) + from,
                                   &stage.states.word, stage.chunks[1].state_gradient, kPanelBytes);
  }
  __device__ void store(const Stage& stage, const ChunkPair& pair) const {
    for (int i = 0; i < 2; ++i) {
      store_panel(params.dv_map, stage.chunks[i].state_gradient, pair.tile(i));
      store_panel(params.dk_map, stage.chunks[i].v, pair.tile(i));
      store_panel(params.dq_map, stage.chunks[i].q, pair.tile(i));
    }
  }

  __device__ void run() const {
    ChunkPair pairs[kStages];
#pragma unroll
    for (int i = 0; i < kStages; ++i) {
      // why before the stream is followed: these came before the kernel before this one.
      if (nth_pair(i) >= params.count) break;
      pairs[i] = find_pair(params, static_cast<unsigned>(nth_pair(i)));
      load_first_inputs(shared.stages[i], pairs[i]);
      load_other_inputs(shared.stages[i], pairs[i]);
    }
    follow_stream();
#pragma unroll
    for (int i = 0; i < kStages; ++i) {
      if (nth_pair(i) < params.count) load_states(shared.stages[i], pairs[i]);
    }
    ChunkPair own = pairs[0], following = pairs[1];
    RingPosition<kStages> now;
    for (std::int64_t n = 0; nth_pair(n) < params.count; ++n, now.advance()) {
      Stage& stage = shared.stages[now.stage];
      const bool more = nth_pair(n + kStages) < params.count;
      const ChunkPair next =
          find_pair(params, static_cast<unsigned>(more ? nth_pair(n + kStages) : nth_pair(n)));
      stage.made.wait(now.parity);
      store(stage, own);
      if (more) load_first_inputs(stage, next);
      wait_stores_read();
      if (more) {
        load_other_inputs(stage, next);
        load_states(stage, next);
      }
      own = following;
      following = next;
    }
  }
};

/// One warp: the decay factors of the pairs that are copied in, and the gradient by the decays.
struct ChunkDecays {
  const ChunkBackwardParams& params;
  ChunkGradientsShared& shared;

  using Stage = ChunkGradientsShared::Stage;

  __device__ LogDecays load(const ChunkPair& pair, int which) const {
    return load_log_decays(params.problem.forward.log_decay, pair, which, params.problem.forward.T);
  }
  __device__ void prepare(Stage& stage, const LogDecays (&log_decay)[2]) const {
    const float scale = params.problem.forward.scale;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      auto& tokens = stage.tokens[i];
      *reinterpret_cast<float2*>(&tokens.log_decay[2 * (threadIdx.x % 32)]) = log_decay[i].own;
      compute_chunk_decay<false>(log_decay[i], scale, tokens.decay);
      compute_chunk_decay<true>(log_decay[i], scale, tokens.decay_behind);
    }
    stage.inputs.arrive();
  }

  __device__ void run() const {
    constexpr int kStages = ChunkGradientsShared::kStages;
    for (int i = 0; i < kStages && nth_pair(i) < params.count; ++i) {
      const ChunkPair pair = find_pair(params, static_cast<unsigned>(nth_pair(i)));
      prepare(shared.stages[i], {load(pair, 0), load(pair, 1)});
    }
    RingPosition<kStages> now;
    for (std::int64_t n = 0; nth_pair(n) < params.count; ++n, now.advance()) {
      Stage& stage = shared.stages[now.stage];
      const ChunkPair pair = find_pair(params, static_cast<unsigned>(nth_pair(n)));
      const bool more = nth_pair(n + kStages) < params.count;
      const ChunkPair next =
          more ? find_pair(params, static_cast<unsigned>(nth_pair(n + kStages))) : pair;
      const LogDecays log_decay[2] = {load(next, 0), load(next, 1)};
      stage.made.wait(now.parity);
      for (int i = 0; i < 2; ++i) differentiate_decay(params, stage.tokens[i], pair, i);
      __syncwarp();
      if (more) prepare(stage, log_decay);
    }
  }
};

template <class Element>
__global__ __launch_bounds__(ChunkGradientsConfig::kThreads, 1) void gla_chunk_gradients_kernel(
    const __grid_constant__ ChunkBackwardParams params) {
  using Config = ChunkGradientsConfig;
  extern __shared__ __align__(1024) char shared_memory[];
  auto& shared = *reinterpret_cast<ChunkGradientsShared*>(shared_memory);
  const int warpgroup = __shfl_sync(0xFFFFFFFFu, threadIdx.x / 128, 0);
  if (threadIdx.x == 32) {
    for (const CUtensorMap* map : {&params.q_map, &params.k_map, &params.v_map, &params.d_o_map,
                                   &params.dq_map, &params.dk_map, &params.dv_map}) {
      prefetch_tensor_map(*map);
    }
  }
  if (threadIdx.x == 0) {
    for (auto& stage : shared.stages) {
      stage.inputs.init(1 + 32);
      stage.states.init(1);
      stage.made.init(Config::kProducts);
    }
    fence_barriers_initialised();
  }
  __syncthreads();
  if (warpgroup == 0) {
    cutlass::arch::warpgroup_reg_dealloc<Config::kMemoryRegisters>();
    if (threadIdx.x == 0) ChunkCopies{params, shared}.run();
    if (threadIdx.x / 32 == 1) ChunkDecays{params, shared}.run();
    return;
  }
  cutlass::arch::warpgroup_reg_alloc<Config::kProductRegisters>();
  const int group = warpgroup - 1;
  RingPosition<ChunkGradientsShared::kStages> now;
  for (std::int64_t at = blockIdx.x; at < params.count; at += gridDim.x, now.advance()) {
    make_gradients<Element>(shared.stages[now.stage], group, shared.weights[group],
                            params.problem.forward.scale, now.parity);
  }
}

}  // namespace tandem::cuda
