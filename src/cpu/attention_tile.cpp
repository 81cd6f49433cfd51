#include "cpu/attention_tile.h"

#include <algorithm>
#include <limits>

#include "cpu/exp2.h"
#include "cpu/isa.h"

namespace tandem::cpu {
namespace {

constexpr int kLanes = 16;  // why: a reduction to one value is not vectorised

template <typename Real>
constexpr Real kNothing = -std::numeric_limits<Real>::infinity();

/// NaN is passed over: it comes back as a weight.
template <typename Real>
TANDEM_ALWAYS_INLINE Real largest(const Real* __restrict x, std::int64_t count, Real most) {
  Real lanes[kLanes];
  for (Real& lane : lanes) lane = most;
  std::int64_t j = 0;
  for (; j + kLanes <= count; j += kLanes) {
    for (int lane = 0; lane < kLanes; ++lane) {
      lanes[lane] = x[j + lane] > lanes[lane] ? x[j + lane] : lanes[lane];
    }
  }
  for (; j < count; ++j) most = x[j] > most ? x[j] : most;
  for (const Real lane : lanes) most = lane > most ? lane : most;
  return most;
}

/// x = exp(x - shift); returns the sum.
template <typename Real>
TANDEM_ALWAYS_INLINE Real exponentials(Real* __restrict x, std::int64_t count, Real shift) {
  Real lanes[kLanes] = {};
  std::int64_t j = 0;
  for (; j + kLanes <= count; j += kLanes) {
    for (int lane = 0; lane < kLanes; ++lane) {
      x[j + lane] = exp(x[j + lane] - shift);
      lanes[lane] += x[j + lane];
    }
  }
  Real sum = 0;
  for (; j < count; ++j) sum += x[j] = exp(x[j] - shift);
  for (const Real lane : lanes) sum += lane;
  return sum;
}

template <typename Real>
TANDEM_ALWAYS_INLINE void softmax_rows(const ScoreTile<Real>& tile, SoftmaxRow<Real>* rows,
                                       Real* factors) {
  for (std::size_t i = 0; i < tile.seen.size(); ++i) {
    const auto [begin, end] = tile.seen[i];
    Real* scores = tile.scores + static_cast<std::int64_t>(i) * tile.columns;
    std::fill(scores, scores + begin, Real{0});
    std::fill(scores + end, scores + tile.columns, Real{0});
    const Real most = largest(scores + begin, end - begin, rows[i].most);
    // Without a score but -inf every weight is 0, not NaN.
    const Real shift = most == kNothing<Real> ? 0 : most;
    factors[i] = exp(rows[i].most - shift);
    const Real sum = exponentials(scores + begin, end - begin, shift);
    rows[i] = {most, rows[i].sum * factors[i] + sum};
  }
}

template <typename Real>
TANDEM_ALWAYS_INLINE void gradient_rows(const ScoreTile<Real>& tile, const Real* log_sum_exp,
                                        const Real* mean, Real* gradients) {
  for (std::size_t i = 0; i < tile.seen.size(); ++i) {
    const bool sees_nothing = log_sum_exp[i] == kNothing<Real>;
    const auto [begin, end] = sees_nothing ? Range{0, 0} : tile.seen[i];
    const std::int64_t first = static_cast<std::int64_t>(i) * tile.columns;
    Real* __restrict p = tile.scores + first;
    Real* __restrict d = gradients + first;
    for (Real* row : {p, d}) {
      std::fill(row, row + begin, Real{0});
      std::fill(row + end, row + tile.columns, Real{0});
    }
    const Real shift = log_sum_exp[i], mean_of_row = mean[i];
    for (std::int64_t j = begin; j < end; ++j) {
      p[j] = exp(p[j] - shift);
      d[j] = p[j] * (d[j] - mean_of_row);
    }
  }
}

TANDEM_FOR_EACH_ISA(softmax,
                    (const ScoreTile<float>& tile, SoftmaxRow<float>* rows, float* factors),
                    softmax_rows(tile, rows, factors))
TANDEM_FOR_EACH_ISA(gradient,
                    (const ScoreTile<float>& tile, const float* log_sum_exp, const float* mean,
                     float* gradients),
                    gradient_rows(tile, log_sum_exp, mean, gradients))

}  // namespace

void softmax_tile(const ScoreTile<float>& tile, SoftmaxRow<float>* rows, float* factors) {
  TANDEM_CALL_FOR_ISA(isa(), softmax, tile, rows, factors)
}
void softmax_tile(const ScoreTile<double>& tile, SoftmaxRow<double>* rows, double* factors) {
  softmax_rows(tile, rows, factors);
}

void gradient_tile(const ScoreTile<float>& tile, const float* log_sum_exp, const float* mean,
                   float* gradients) {
  TANDEM_CALL_FOR_ISA(isa(), gradient, tile, log_sum_exp, mean, gradients)
}
void gradient_tile(const ScoreTile<double>& tile, const double* log_sum_exp, const double* mean,
                   double* gradients) {
  gradient_rows(tile, log_sum_exp, mean, gradients);
}

}  // namespace tandem::cpu
