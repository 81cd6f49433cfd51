#include "cpu/projection_tile.h"

#include <cmath>

#include "cpu/isa.h"
#include "cpu/logistic.h"
#include "ops/projection_problem.h"

namespace tandem::cpu {
namespace {

// why a function per loop: __restrict of parameters outlives inlining.
#define TANDEM_LOOP        \
  template <typename Real> \
  TANDEM_ALWAYS_INLINE void

/// Calls one(z, slope) for each value; it returns out.
template <typename Real, typename One>
TANDEM_ALWAYS_INLINE void map(std::int64_t count, Real* __restrict z, Real* __restrict slope,
                              const One& one) {
  for (std::int64_t i = 0; i < count; ++i) {
    Real derivative;
    z[i] = one(z[i], derivative);
    slope[i] = derivative;
  }
}

TANDEM_LOOP activate_loop(const ActivationOf<Real>& f, std::int64_t count, Real* z, Real* slope) {
  switch (f.kind) {
    case Activation::kSilu:
      return map(count, z, slope, [](Real x, Real& derivative) {
        const Logistic<Real> l(x);
        derivative = l.sigmoid() + x * l.slope();
        return x * l.sigmoid();
      });
    case Activation::kSigmoid:
      return map(count, z, slope, [](Real x, Real& derivative) {
        const Logistic<Real> l(x);
        derivative = l.slope();
        return l.sigmoid();
      });
    case Activation::kLogSigmoid:
      return map(count, z, slope, [&](Real x, Real& derivative) {
        const Logistic<Real> l(x);
        derivative = l.one_less_sigmoid() / f.divisor;
        return ((x < 0 ? x : 0) - std::log1p(l.e)) / f.divisor;
      });
    case Activation::kSoftplus:
      return map(count, z, slope, [&](Real x, Real& derivative) {
        const Logistic<Real> l(x);
        const Real y = (x > 0 ? x : 0) + std::log1p(l.e);
        derivative = y < f.min || y > f.max ? 0 : l.sigmoid();
        return y < f.min ? f.min : y > f.max ? f.max : y;
      });
    default: return;
  }
}

TANDEM_LOOP bias_loop(std::int64_t rows, std::int64_t columns, const Real* __restrict bias,
                      Real* __restrict z) {
  for (std::int64_t i = 0; i < rows; ++i) {
    for (std::int64_t j = 0; j < columns; ++j) z[i * columns + j] += bias[j];
  }
}

constexpr int kLanes = 8;  // a sum of one accumulator is not vectorised; heads are whole lanes

template <typename Real>
TANDEM_ALWAYS_INLINE Real dot(std::int64_t width, const Real* a, const Real* b) {
  Real lanes[kLanes] = {};
  for (std::int64_t j = 0; j < width; j += kLanes) {
    for (int lane = 0; lane < kLanes; ++lane) lanes[lane] += a[j + lane] * b[j + lane];
  }
  Real sum = 0;
  for (const Real lane : lanes) sum += lane;
  return sum;
}

TANDEM_LOOP normalize_loop(std::int64_t heads, std::int64_t width, Real* __restrict z,
                           Real* __restrict inverse_norm) {
  for (std::int64_t i = 0; i < heads; ++i) {
    Real* head = z + i * width;
    const Real inverse =
        1 / std::sqrt(dot(width, head, head) + static_cast<Real>(kL2NormalizeEpsilon));
    for (std::int64_t j = 0; j < width; ++j) head[j] *= inverse;
    inverse_norm[i] = inverse;
  }
}

TANDEM_LOOP multiply_loop(std::int64_t count, const Real* __restrict slope, Real* __restrict d) {
  for (std::int64_t i = 0; i < count; ++i) d[i] *= slope[i];
}

TANDEM_LOOP differentiate_loop(std::int64_t heads, std::int64_t width, const Real* __restrict out,
                               const Real* __restrict inverse_norm, Real* __restrict d) {
  for (std::int64_t i = 0; i < heads; ++i) {
    const Real* y = out + i * width;
    Real* head = d + i * width;
    const Real along = dot(width, head, y);
    for (std::int64_t j = 0; j < width; ++j) head[j] = inverse_norm[i] * (head[j] - along * y[j]);
  }
}

TANDEM_LOOP add_rows_loop(std::int64_t rows, std::int64_t columns, const Real* __restrict values,
                          Real* __restrict sum) {
  for (std::int64_t i = 0; i < rows; ++i) {
    for (std::int64_t j = 0; j < columns; ++j) sum[j] += values[i * columns + j];
  }
}

#undef TANDEM_LOOP

TANDEM_FOR_EACH_ISA(activate,
                    (const ActivationOf<float>& f, std::int64_t count, float* z, float* slope),
                    activate_loop(f, count, z, slope))
TANDEM_FOR_EACH_ISA(bias, (std::int64_t rows, std::int64_t columns, const float* values, float* z),
                    bias_loop(rows, columns, values, z))
TANDEM_FOR_EACH_ISA(normalize,
                    (std::int64_t heads, std::int64_t width, float* z, float* inverse_norm),
                    normalize_loop(heads, width, z, inverse_norm))
TANDEM_FOR_EACH_ISA(multiply, (std::int64_t count, const float* slope, float* d),
                    multiply_loop(count, slope, d))
TANDEM_FOR_EACH_ISA(differentiate,
                    (std::int64_t heads, std::int64_t width, const float* out,
                     const float* inverse_norm, float* d),
                    differentiate_loop(heads, width, out, inverse_norm, d))
TANDEM_FOR_EACH_ISA(add, (std::int64_t rows, std::int64_t columns, const float* values, float* sum),
                    add_rows_loop(rows, columns, values, sum))

}  // namespace

template <>
void activate(const ActivationOf<float>& f, std::int64_t count, float* z, float* slope) {
  TANDEM_CALL_FOR_ISA(isa(), activate, f, count, z, slope)
}
template <>
void activate(const ActivationOf<double>& f, std::int64_t count, double* z, double* slope) {
  activate_loop(f, count, z, slope);
}

template <>
void add_bias(std::int64_t rows, std::int64_t columns, const float* values, float* z) {
  TANDEM_CALL_FOR_ISA(isa(), bias, rows, columns, values, z)
}
template <>
void add_bias(std::int64_t rows, std::int64_t columns, const double* values, double* z) {
  bias_loop(rows, columns, values, z);
}

template <>
void normalize_heads(std::int64_t heads, std::int64_t width, float* z, float* inverse_norm) {
  TANDEM_CALL_FOR_ISA(isa(), normalize, heads, width, z, inverse_norm)
}
template <>
void normalize_heads(std::int64_t heads, std::int64_t width, double* z, double* inverse_norm) {
  normalize_loop(heads, width, z, inverse_norm);
}

template <>
void multiply_by_slope(std::int64_t count, const float* slope, float* d) {
  TANDEM_CALL_FOR_ISA(isa(), multiply, count, slope, d)
}
template <>
void multiply_by_slope(std::int64_t count, const double* slope, double* d) {
  multiply_loop(count, slope, d);
}

template <>
void differentiate_heads(std::int64_t heads, std::int64_t width, const float* out,
                         const float* inverse_norm, float* d) {
  TANDEM_CALL_FOR_ISA(isa(), differentiate, heads, width, out, inverse_norm, d)
}
template <>
void differentiate_heads(std::int64_t heads, std::int64_t width, const double* out,
                         const double* inverse_norm, double* d) {
  differentiate_loop(heads, width, out, inverse_norm, d);
}

template <>
void add_rows(std::int64_t rows, std::int64_t columns, const float* values, float* sum) {
  TANDEM_CALL_FOR_ISA(isa(), add, rows, columns, values, sum)
}
template <>
void add_rows(std::int64_t rows, std::int64_t columns, const double* values, double* sum) {
  add_rows_loop(rows, columns, values, sum);
}

}  // namespace tandem::cpu
