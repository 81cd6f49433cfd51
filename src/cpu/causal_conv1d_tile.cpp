#include "cpu/causal_conv1d_tile.h"

#include <algorithm>

#include "cpu/isa.h"
#include "cpu/logistic.h"

namespace tandem::cpu {
namespace {

// why a function per row: __restrict of parameters outlives inlining.
template <typename Real>
TANDEM_ALWAYS_INLINE void add_product_row(int columns, const Real* __restrict a,
                                          const Real* __restrict b, Real* __restrict sum) {
  for (int j = 0; j < columns; ++j) sum[j] += a[j] * b[j];
}

template <typename Real>
TANDEM_ALWAYS_INLINE void add_row(int columns, const Real* __restrict a, Real* __restrict sum) {
  for (int j = 0; j < columns; ++j) sum[j] += a[j];
}

template <typename Real>
TANDEM_ALWAYS_INLINE void silu_row(int columns, Real* __restrict z) {
  for (int j = 0; j < columns; ++j) z[j] *= Logistic<Real>(z[j]).sigmoid();
}

template <typename Real>
TANDEM_ALWAYS_INLINE void silu_slope_row(int columns, const Real* __restrict z,
                                         Real* __restrict d) {
  for (int j = 0; j < columns; ++j) {
    const Logistic<Real> logistic(z[j]);
    d[j] *= logistic.sigmoid() * (1 + z[j] * logistic.one_less_sigmoid());
  }
}

template <typename Real>
TANDEM_ALWAYS_INLINE void convolve_loop(ConvShape s, const Real* inputs, const Real* weight,
                                        int stride, const Real* bias, Real* z) {
  for (int i = 0; i < s.rows; ++i) {
    Real* row = z + i * kConvColumns;
    std::copy_n(bias, s.columns, row);
    for (int w = 0; w < s.W; ++w) {
      add_product_row(s.columns, weight + w * stride, inputs + (i + w) * kConvColumns, row);
    }
  }
}

template <typename Real>
TANDEM_ALWAYS_INLINE void silu_loop(ConvShape s, Real* z) {
  for (int i = 0; i < s.rows; ++i) silu_row(s.columns, z + i * kConvColumns);
}

template <typename Real>
TANDEM_ALWAYS_INLINE void silu_slope_loop(ConvShape s, const Real* z, Real* d) {
  for (int i = 0; i < s.rows; ++i) {
    silu_slope_row(s.columns, z + i * kConvColumns, d + i * kConvColumns);
  }
}

template <typename Real>
TANDEM_ALWAYS_INLINE void correlate_loop(ConvShape s, const Real* dz, const Real* weight,
                                         int stride, Real* dx) {
  for (int i = 0; i < s.rows; ++i) {
    for (int w = 0; w < s.W; ++w) {
      add_product_row(s.columns, weight + w * stride, dz + (i + s.W - 1 - w) * kConvColumns,
                      dx + i * kConvColumns);
    }
  }
}

template <typename Real>
TANDEM_ALWAYS_INLINE void sum_loop(ConvShape s, const Real* inputs, const Real* dz, Real* sums,
                                   int stride) {
  for (int w = 0; w <= s.W; ++w) std::fill_n(sums + w * stride, s.columns, Real{0});
  for (int i = 0; i < s.rows; ++i) {
    const Real* row = dz + i * kConvColumns;
    for (int w = 0; w < s.W; ++w) {
      add_product_row(s.columns, inputs + (i + w) * kConvColumns, row, sums + w * stride);
    }
    add_row(s.columns, row, sums + s.W * stride);
  }
}

#define TANDEM_LOOPS(Real)                                                                         \
  TANDEM_FOR_EACH_ISA(convolve,                                                                    \
                      (ConvShape shape, const Real* inputs, const Real* weight, int stride,        \
                       const Real* bias, Real* z),                                                 \
                      convolve_loop(shape, inputs, weight, stride, bias, z))                       \
  TANDEM_FOR_EACH_ISA(silu, (ConvShape shape, Real * z), silu_loop(shape, z))                      \
  TANDEM_FOR_EACH_ISA(silu_slope, (ConvShape shape, const Real* z, Real* d),                       \
                      silu_slope_loop(shape, z, d))                                                \
  TANDEM_FOR_EACH_ISA(correlate,                                                                   \
                      (ConvShape shape, const Real* dz, const Real* weight, int stride, Real* dx), \
                      correlate_loop(shape, dz, weight, stride, dx))                               \
  TANDEM_FOR_EACH_ISA(                                                                             \
      sum, (ConvShape shape, const Real* inputs, const Real* dz, Real* sums, int stride),          \
      sum_loop(shape, inputs, dz, sums, stride))

namespace loops {
TANDEM_LOOPS(float)
TANDEM_LOOPS(double)
}  // namespace loops

}  // namespace

template <typename Real>
void convolve(ConvShape shape, const Real* inputs, const Real* weight, int stride, const Real* bias,
              Real* z) {
  TANDEM_CALL_FOR_ISA(isa(), loops::convolve, shape, inputs, weight, stride, bias, z)
}

template <typename Real>
void apply_silu(ConvShape shape, Real* z) {
  TANDEM_CALL_FOR_ISA(isa(), loops::silu, shape, z)
}

template <typename Real>
void differentiate_silu(ConvShape shape, const Real* z, Real* d) {
  TANDEM_CALL_FOR_ISA(isa(), loops::silu_slope, shape, z, d)
}

template <typename Real>
void correlate(ConvShape shape, const Real* dz, const Real* weight, int stride, Real* dx) {
  TANDEM_CALL_FOR_ISA(isa(), loops::correlate, shape, dz, weight, stride, dx)
}

template <typename Real>
void sum_taps(ConvShape shape, const Real* inputs, const Real* dz, Real* sums,
              int stride){TANDEM_CALL_FOR_ISA(isa(), loops::sum, shape, inputs, dz, sums, stride)}

#define TANDEM_INSTANCES(Real)                                                          \
  template void convolve(ConvShape, const Real*, const Real*, int, const Real*, Real*); \
  template void apply_silu(ConvShape, Real*);                                           \
  template void differentiate_silu(ConvShape, const Real*, Real*);                      \
  template void correlate(ConvShape, const Real*, const Real*, int, Real*);             \
  template void sum_taps(ConvShape, const Real*, const Real*, Real*, int);

TANDEM_INSTANCES(float) TANDEM_INSTANCES(double)

}  // namespace tandem::cpu
