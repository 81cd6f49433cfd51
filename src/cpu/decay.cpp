#include "cpu/decay.h"

#include <algorithm>
#include <limits>

#include "cpu/exp2.h"
#include "cpu/isa.h"

namespace tandem::cpu {
namespace {

template <typename Real>
TANDEM_ALWAYS_INLINE void factors_loop(ChunkDecay<Real>& decay) {
  const int length = decay.length;
  const Real high_end = decay.high[length - 1], low_end = decay.low[length - 1];
  for (int i = 0; i < length; ++i) {
    decay.from_start[i] = exp2(decay.high[i] + decay.low[i]);
    decay.to_end[i] = exp2((high_end - decay.high[i]) + (low_end - decay.low[i]));
  }
}

template <typename Real, typename T>
TANDEM_ALWAYS_INLINE void causal_loop(const ChunkDecay<Real>& decay, const Real* scores, T* weights,
                                      Real factor) {
  for (int i = 0; i < decay.length; ++i) {
    const Real* __restrict row = scores + i * kChunk;
    T* __restrict out = weights + i * kChunk;
    const Real high = decay.high[i], low = decay.low[i];
    const int begin = decay.begin[i];
    const int end = i / 16 * 16 + 16;  // why: whole vectors; what lies past i is selected away
    for (int j = 0; j < end; ++j) {
      const Real value = factor * row[j] * exp2((high - decay.high[j]) + (low - decay.low[j]));
      out[j] = from_float<T>((j >= begin) & (j <= i) ? value : Real{0});
    }
    for (int j = end; j < kChunk; ++j) out[j] = T{};
  }
}

template <typename Real>
TANDEM_ALWAYS_INLINE void pairs_loop(const ChunkDecay<Real>& decay, const Real* scores,
                                     const Real* value_scores, Real* gradient) {
  Real columns[kChunk] = {};  // over the rows from i on
  for (int i = decay.length - 1; i >= 0; --i) {
    const Real* __restrict row = scores + i * kChunk;
    const Real* __restrict value_row = value_scores + i * kChunk;
    const Real high = decay.high[i], low = decay.low[i];
    const int begin = decay.begin[i];
    const int end = i / 16 * 16 + 16;
    Real lanes[16] = {};
    for (int j = 0; j < end; j += 16) {
      for (int lane = 0; lane < 16; ++lane) {
        const int at = j + lane;
        const Real factor = exp2((high - decay.high[at]) + (low - decay.low[at]));
        const Real value = row[at] * value_row[at] * factor;
        columns[at] += (at >= begin) & (at < i) ? value : Real{0};
        lanes[lane] += at < i ? columns[at] : Real{0};
      }
    }
    Real sum = 0;
    for (const Real lane : lanes) sum += lane;
    gradient[i] = sum;
  }
}

template <typename Real, typename T>
TANDEM_ALWAYS_INLINE void scale_loop(const Real* factors, int length, std::int64_t columns,
                                     const T* from, std::int64_t stride, T* to) {
  for (int i = 0; i < length; ++i) {
    const Real factor = factors[i];
    const T* source = from + i * stride;
    T* target = to + i * columns;
    if (factor == 0) {
      std::fill_n(target, columns, T{});
    } else {
      for (std::int64_t j = 0; j < columns; ++j)
        target[j] = from_float<T>(to_float(source[j]) * factor);
    }
  }
}

template <typename Real>
TANDEM_ALWAYS_INLINE void update_loop(Real total, const Real* __restrict update, std::int64_t count,
                                      Real* __restrict state) {
  for (std::int64_t i = 0; i < count; ++i) {
    state[i] = (total == 0 ? Real{0} : total * state[i]) + update[i];
  }
}

template <typename Real>
TANDEM_ALWAYS_INLINE void add_decayed_loop(Real total, const Real* __restrict state,
                                           std::int64_t count, Real* __restrict sum) {
  for (std::int64_t i = 0; i < count; ++i) sum[i] += total * state[i];
}

#define TANDEM_CAUSAL \
  (const ChunkDecay<float>& decay, const float* scores, T* weights, float factor)
#define TANDEM_SCALE                                                                           \
  (const float* factors, int length, std::int64_t columns, const T* from, std::int64_t stride, \
   T* to)

TANDEM_FOR_EACH_ISA(factors, (ChunkDecay<float> & decay), factors_loop(decay))
TANDEM_FOR_EACH_ISA(pairs,
                    (const ChunkDecay<float>& decay, const float* scores, const float* value_scores,
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

void compute_factors(ChunkDecay<float>& decay) { TANDEM_CALL_FOR_ISA(isa(), factors, decay) }
void compute_factors(ChunkDecay<double>& decay) { factors_loop(decay); }

}  // namespace

template <typename Real>
void compute_decay(const Real* log_decay, std::int64_t stride, int length,
                   ChunkDecay<Real>& decay) {
  constexpr double kLog2E = 1.4426950408889634;
  decay.length = length;
  int begin = 0;
  int first_reset = length;
  double sum = 0.0;
  for (int i = 0; i < length; ++i) {
    const Real g = log_decay ? log_decay[i * stride] : 0;
    if (g < kResetLogDecay<Real>) {
      begin = i;
      first_reset = std::min(first_reset, i);
    } else {
      sum += static_cast<double>(g) * kLog2E;
    }
    decay.high[i] = static_cast<Real>(sum);
    decay.low[i] = static_cast<Real>(sum - static_cast<double>(decay.high[i]));
    decay.begin[i] = begin;
  }
  std::fill(decay.high + length, decay.high + kChunk, Real{0});
  std::fill(decay.low + length, decay.low + kChunk, Real{0});
  compute_factors(decay);
  std::fill(decay.from_start + first_reset, decay.from_start + length, Real{0});
  std::fill(decay.to_end, decay.to_end + begin, Real{0});
  decay.first_reset = first_reset;
  decay.total = decay.from_start[length - 1];
}

template <typename Real>
double sum_log_decay(const Real* log_decay, std::int64_t stride, std::int64_t length) {
  if (!log_decay) return 0.0;
  double sum = 0.0;
  for (std::int64_t i = 0; i < length; ++i) {
    const Real g = log_decay[i * stride];
    sum += g < kResetLogDecay<Real> ? -std::numeric_limits<double>::infinity() : g;
  }
  return sum;
}

// In fp32 by instruction sets, in fp64 as it is.

template void compute_decay(const float*, std::int64_t, int, ChunkDecay<float>&);
template void compute_decay(const double*, std::int64_t, int, ChunkDecay<double>&);
template double sum_log_decay(const float*, std::int64_t, std::int64_t);
template double sum_log_decay(const double*, std::int64_t, std::int64_t);

template <>
void apply_causal_decay(const ChunkDecay<float>& decay, const float* scores, float* weights,
                        float factor) {
  TANDEM_CALL_FOR_ISA(isa(), fp32::causal, decay, scores, weights, factor)
}

template <>
void apply_causal_decay(const ChunkDecay<float>& decay, const float* scores, BFloat16* weights,
                        float factor) {
  TANDEM_CALL_FOR_ISA(isa(), bf16::causal, decay, scores, weights, factor)
}

template <>
void apply_causal_decay(const ChunkDecay<double>& decay, const double* scores, double* weights,
                        double factor) {
  causal_loop(decay, scores, weights, factor);
}

template <>
void sum_causal_pairs(const ChunkDecay<float>& decay, const float* scores,
                      const float* value_scores, float* gradient) {
  TANDEM_CALL_FOR_ISA(isa(), pairs, decay, scores, value_scores, gradient)
}

template <>
void sum_causal_pairs(const ChunkDecay<double>& decay, const double* scores,
                      const double* value_scores, double* gradient) {
  pairs_loop(decay, scores, value_scores, gradient);
}

template <>
void scale_rows(const float* factors, int length, std::int64_t columns, const float* from,
                std::int64_t stride, float* to) {
  TANDEM_CALL_FOR_ISA(isa(), fp32::scale, factors, length, columns, from, stride, to)
}

template <>
void scale_rows(const float* factors, int length, std::int64_t columns, const BFloat16* from,
                std::int64_t stride, BFloat16* to) {
  TANDEM_CALL_FOR_ISA(isa(), bf16::scale, factors, length, columns, from, stride, to)
}

template <>
void scale_rows(const double* factors, int length, std::int64_t columns, const double* from,
                std::int64_t stride, double* to) {
  scale_loop(factors, length, columns, from, stride, to);
}

template <>
void update_state(float total, const float* update, std::int64_t count, float* state) {
  TANDEM_CALL_FOR_ISA(isa(), update, total, update, count, state)
}

template <>
void update_state(double total, const double* update, std::int64_t count, double* state) {
  update_loop(total, update, count, state);
}

template <>
void add_decayed(float total, const float* state, std::int64_t count, float* sum) {
  if (total == 0.0f) return;
  TANDEM_CALL_FOR_ISA(isa(), add_decayed, total, state, count, sum)
}

template <>
void add_decayed(double total, const double* state, std::int64_t count, double* sum) {
  if (total != 0) add_decayed_loop(total, state, count, sum);
}

}  // namespace tandem::cpu
