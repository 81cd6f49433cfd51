// Decay factors of one chunk of a scalar-decay recurrence, in base 2.
//
// With G_i the inclusive sum of the chunk's decays, token j reaches token i with factor 2^(G_i -
// G_j), never above 1 for decays <= 0. A decay that leaves nothing of an fp32 number (2^g == 0;
// -inf among them) is a reset: it enters the sum as 0, and the window [window_begin[i], i] says
// which tokens reach i. Differences inside a window then never meet -inf, and sums stay small
// enough to subtract exactly.
#pragma once

#include <cstdint>

namespace tandem::cuda {

constexpr float kLog2E = 1.4426950408889634f;
/// 2^-150 rounds to 0 in fp32, subnormals included.
constexpr float kResetLog2 = -150.0f;

template <int kChunk>
struct alignas(16) ChunkDecay {
  float log2_sum[kChunk];    // G_i, resets counted as 0
  int window_begin[kChunk];  // the last reset at or before i, or -1: all of the past reaches i
  float from_state[kChunk];  // scale * factor from the state before the chunk to token i
  float to_state[kChunk];    // factor from token j to the state after the chunk
  float state_to_state;      // factor from the state before to the state after
};

/// 2^x within 2 ulp, subnormal results flushed to 0.
__device__ inline float fast_exp2(float x) {
  // why: exp2f scales its argument to keep subnormals, five instructions more per element.
  float result;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(x));
  return result;
}

/// Factor from token j to token i >= j, given row i's sum and window.
__device__ inline float decay_factor(float log2_sum_i, int window_begin_i, float log2_sum_j,
                                     int j) {
  const float factor = fast_exp2(log2_sum_i - log2_sum_j);  // why first: no branch around it
  return j >= window_begin_i ? factor : 0.0f;
}

/// One warp. Lane l brings the natural-log decays of tokens 2l and 2l+1 (0 past the sequence's
/// end).
template <int kChunk>
__device__ inline void compute_chunk_decay(float2 log_decay, float scale, ChunkDecay<kChunk>& out) {
  static_assert(kChunk == 64, "two tokens per lane");
  constexpr unsigned kWarp = 0xFFFFFFFFu;
  const int lane = threadIdx.x % 32;
  const float g0 = log_decay.x * kLog2E;
  const float g1 = log_decay.y * kLog2E;
  const bool reset0 = g0 < kResetLog2;
  const bool reset1 = g1 < kResetLog2;
  const float own0 = reset0 ? 0.0f : g0;
  const float own1 = reset1 ? 0.0f : g1;
  const int begin0 = reset0 ? 2 * lane : -1;

  float sum = own0 + own1;
  int begin = reset1 ? 2 * lane + 1 : begin0;
#pragma unroll
  for (int distance = 1; distance < 32; distance *= 2) {
    const float earlier_sum = __shfl_up_sync(kWarp, sum, distance);
    const int earlier_begin = __shfl_up_sync(kWarp, begin, distance);
    if (lane >= distance) {
      sum += earlier_sum;
      begin = max(begin, earlier_begin);
    }
  }
  const float total = __shfl_sync(kWarp, sum, 31);
  const int last_begin = __shfl_sync(kWarp, begin, 31);
  float sum_before = __shfl_up_sync(kWarp, sum, 1);
  int begin_before = __shfl_up_sync(kWarp, begin, 1);
  if (lane == 0) {
    sum_before = 0.0f;
    begin_before = -1;
  }

  const float sums[2] = {sum_before + own0, sum};
  const int begins[2] = {max(begin_before, begin0), begin};
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const int token = 2 * lane + i;
    out.log2_sum[token] = sums[i];
    out.window_begin[token] = begins[i];
    out.from_state[token] = begins[i] < 0 ? scale * fast_exp2(sums[i]) : 0.0f;
    out.to_state[token] = token >= last_begin ? fast_exp2(total - sums[i]) : 0.0f;
  }
  if (lane == 0) out.state_to_state = last_begin < 0 ? fast_exp2(total) : 0.0f;
}

}  // namespace tandem::cuda
