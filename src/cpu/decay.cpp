#include "cpu/decay.h"

#include <algorithm>
#include <limits>

#include "cpu/exp2.h"
#include "cpu/isa.h"

namespace tandem::cpu {
namespace {

TANDEM_ALWAYS_INLINE void factors_loop(ChunkDecay& decay) {
  const int length = decay.length;
  const float high_end = decay.high[length - 1], low_end = decay.low[length - 1];
  for (int i = 0; i < length; ++i) {
    decay.from_start[i] = exp2(decay.high[i] + decay.low[i]);
    decay.to_end[i] = exp2((high_end - decay.high[i]) + (low_end - decay.low[i]));
  }
}

template <typename T>
TANDEM_ALWAYS_INLINE void causal_loop(const ChunkDecay& decay, const float* scores, T* weights,
                                      float factor) {
  for (int i = 0; i < decay.length; ++i) {
    const float* __restrict row = scores + i * kChunk;
    T* __restrict out = weights + i * kChunk;
    const float high = decay.high[i], low = decay.low[i];
    const int begin = decay.begin[i];
    const int end = i / 16 * 16 + 16;  // why: whole vectors; what lies past i is selected away
    for (int j = 0; j < end; ++j) {
      const float value = factor * row[j] * exp2((high - decay.high[j]) + (low - decay.low[j]));
      out[j] = from_float<T>((j >= begin) & (j <= i) ? value : 0.0f);
    }
    for (int j = end; j < kChunk; ++j) out[j] = T{};
  }
}

TANDEM_ALWAYS_INLINE void pairs_loop(const ChunkDecay& decay, const float* scores,
                                     const float* value_scores, float* gradient) {
  float columns[kChunk] = {};  // over the rows from i on
  for (int i = decay.length - 1; i >= 0; --i) {
    const float* __restrict row = scores + i * kChunk;
    const float* __restrict value_row = value_scores + i * kChunk;
    const float high = decay.high[i], low = decay.low[i];
    const int begin = decay.begin[i];
    const int end = i / 16 * 16 + 16;
    float lanes[16] = {};
    for (int j = 0; j < end; j += 16) {
      for (int lane = 0; lane < 16; ++lane) {
        const int at = j + lane;
        const float factor = exp2((high - decay.high[at]) + (low - decay.low[at]));
        const float value = row[at] * value_row[at] * factor;
        columns[at] += (at >= begin) & (at < i) ? value : 0.0f;
        lanes[lane] += at < i ? columns[at] : 0.0f;
      }
    }
    float sum = 0.0f;
    for (const float lane : lanes) sum += lane;
    gradient[i] = sum;
  }
}

template <typename T>
TANDEM_ALWAYS_INLINE void scale_loop(const float* factors, int length, std::int64_t columns,
                                     const T* from, std::int64_t stride, T* to) {
  for (int i = 0; i < length; ++i) {
    const float factor = factors[i];
    const T* source = from + i * stride;
    T* target = to + i * columns;
    if (factor == 0.0f) {
      std::fill_n(target, columns, T{});
    } else {
      for (std::int64_t j = 0; j < columns; ++j)
        target[j] = from_float<T>(to_float(source[j]) * factor);
    }
  }
}

TANDEM_ALWAYS_INLINE void update_loop(float total, const float* __restrict update,
                                      std::int64_t count, float* __restrict state) {
  for (std::int64_t i = 0; i < count; ++i) {
    state[i] = (total == 0.0f ? 0.0f : total * state[i]) + update[i];
  }
}

TANDEM_ALWAYS_INLINE void add_decayed_loop(float total, const float* __restrict state,
                                           std::int64_t count, float* __restrict sum) {
  for (std::int64_t i = 0; i < count; ++i) sum[i] += total * state[i];
}

#define TANDEM_CAUSAL (const ChunkDecay& decay, const float* scores, T* weights, float factor)
#define TANDEM_SCALE                                                                           \
  (const float* factors, int length, std::int64_t columns, const T* from, std::int64_t stride, \
   T* to)

TANDEM_FOR_EACH_ISA(factors, (ChunkDecay & decay), factors_loop(decay))
TANDEM_FOR_EACH_ISA(pairs,
                    (const ChunkDecay& decay, const float* scores, const float* value_scores,
                     float* gradient),
                    pairs_loop(decay, scores, value_scores, gradient))
TANDEM_FOR_EACH_ISA(update, (float total, const float* update, std::int64_t count, float* state),
                    update_loop(total, update, count, state))
TANDEM_FOR_EACH_ISA(add_decayed, (float total, const float* state, std::int64_t count, float* sum),
                    add_decayed_loop(total, state, count, sum))

namespace fp32 {
using T = float;
TANDEM_FOR_EACH_ISA(causal, TANDEM_CAUSAL, causal_loop(decay, scores, weights, factor))
TANDEM_FOR_EACH_ISA(scale, TANDEM_SCALE, scale_loop(factors, length, columns, from, stride, to))
}  // namespace fp32

namespace bf16 {
using T = BFloat16;
TANDEM_FOR_EACH_ISA(causal, TANDEM_CAUSAL, causal_loop(decay, scores, weights, factor))
TANDEM_FOR_EACH_ISA(scale, TANDEM_SCALE, scale_loop(factors, length, columns, from, stride, to))
}  // namespace bf16

#undef TANDEM_CAUSAL
#undef TANDEM_SCALE

void compute_factors(ChunkDecay& decay) { TANDEM_CALL_FOR_ISA(isa(), factors, decay) }

}  // namespace

void compute_decay(const float* log_decay, std::int64_t stride, int length, ChunkDecay& decay) {
  constexpr double kLog2E = 1.4426950408889634;
  decay.length = length;
  int begin = 0;
  int first_reset = length;
  double sum = 0.0;
  for (int i = 0; i < length; ++i) {
    const float g = log_decay ? log_decay[i * stride] : 0.0f;
    if (g < kResetLogDecay) {
      begin = i;
      first_reset = std::min(first_reset, i);
    } else {
      sum += static_cast<double>(g) * kLog2E;
    }
    decay.high[i] = static_cast<float>(sum);
    decay.low[i] = static_cast<float>(sum - static_cast<double>(decay.high[i]));
    decay.begin[i] = begin;
  }
  std::fill(decay.high + length, decay.high + kChunk, 0.0f);
  std::fill(decay.low + length, decay.low + kChunk, 0.0f);
  compute_factors(decay);
  std::fill(decay.from_start + first_reset, decay.from_start + length, 0.0f);
  std::fill(decay.to_end, decay.to_end + begin, 0.0f);
  decay.first_reset = first_reset;
  decay.total = decay.from_start[length - 1];
}

double sum_log_decay(const float* log_decay, std::int64_t stride, std::int64_t length) {
  if (!log_decay) return 0.0;
  double sum = 0.0;
  for (std::int64_t i = 0; i < length; ++i) {
    const float g = log_decay[i * stride];
    sum += g < kResetLogDecay ? -std::numeric_limits<double>::infinity() : g;
  }
  return sum;
}

void apply_causal_decay(const ChunkDecay& decay, const float* scores, float* weights,
                        float factor) {
  TANDEM_CALL_FOR_ISA(isa(), fp32::causal, decay, scores, weights, factor)
}

void apply_causal_decay(const ChunkDecay& decay, const float* scores, BFloat16* weights,
                        float factor) {
  TANDEM_CALL_FOR_ISA(isa(), bf16::causal, decay, scores, weights, factor)
}

void sum_causal_pairs(const ChunkDecay& decay, const float* scores, const float* value_scores,
                      float* gradient) {
  TANDEM_CALL_FOR_ISA(isa(), pairs, decay, scores, value_scores, gradient)
}

void scale_rows(const float* factors, int length, std::int64_t columns, float* x) {
  TANDEM_CALL_FOR_ISA(isa(), fp32::scale, factors, length, columns, x, columns, x)
}

void scale_rows(const float* factors, int length, std::int64_t columns, const float* from,
                std::int64_t stride, float* to) {
  TANDEM_CALL_FOR_ISA(isa(), fp32::scale, factors, length, columns, from, stride, to)
}

void scale_rows(const float* factors, int length, std::int64_t columns, const BFloat16* from,
                std::int64_t stride, BFloat16* to) {
  TANDEM_CALL_FOR_ISA(isa(), bf16::scale, factors, length, columns, from, stride, to)
}

void update_state(float total, const float* update, std::int64_t count, float* state) {
  TANDEM_CALL_FOR_ISA(isa(), update, total, update, count, state)
}

void add_decayed(float total, const float* state, std::int64_t count, float* sum) {
  if (total == 0.0f) return;
  TANDEM_CALL_FOR_ISA(isa(), add_decayed, total, state, count, sum)
}

}  // namespace tandem::cpu
