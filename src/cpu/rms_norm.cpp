#include "cpu/rms_norm.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "core/real.h"
#include "cpu/elementwise.h"
#include "cpu/isa.h"
#include "cpu/parallel.h"
#include "cpu/projection_tile.h"
#include "ops/rms_norm.h"

namespace tandem::cpu {
namespace {

constexpr std::int64_t kRows = 64;  // whose part of d_weight is added up apart

// why a function per loop: __restrict of parameters outlives inlining.
#define TANDEM_LOOP        \
  template <typename Real> \
  TANDEM_ALWAYS_INLINE void

TANDEM_LOOP scale_loop(std::int64_t d, Real rstd, const Real* __restrict weight,
                       Real* __restrict x) {
  for (std::int64_t j = 0; j < d; ++j) x[j] = x[j] * rstd * weight[j];
}

/// m = x rstd over x, g = dn weight over dn, and dn m is added to d_weight.
TANDEM_LOOP weigh_loop(std::int64_t d, Real rstd, const Real* __restrict weight, Real* __restrict x,
                       Real* __restrict dn, Real* __restrict d_weight) {
  for (std::int64_t j = 0; j < d; ++j) {
    x[j] *= rstd;
    d_weight[j] += dn[j] * x[j];
    dn[j] *= weight[j];
  }
}

/// dx = rstd (g - m mean), over g.
TANDEM_LOOP project_loop(std::int64_t d, Real rstd, Real mean, const Real* __restrict m,
                         Real* __restrict g) {
  for (std::int64_t j = 0; j < d; ++j) g[j] = rstd * (g[j] - m[j] * mean);
}

#undef TANDEM_LOOP

TANDEM_FOR_EACH_ISA(scale, (std::int64_t d, float rstd, const float* weight, float* x),
                    scale_loop(d, rstd, weight, x))
TANDEM_FOR_EACH_ISA(weigh,
                    (std::int64_t d, float rstd, const float* weight, float* x, float* dn,
                     float* d_weight),
                    weigh_loop(d, rstd, weight, x, dn, d_weight))
TANDEM_FOR_EACH_ISA(project, (std::int64_t d, float rstd, float mean, const float* m, float* g),
                    project_loop(d, rstd, mean, m, g))

void scale_row(std::int64_t d, float rstd, const float* weight, float* x) {
  TANDEM_CALL_FOR_ISA(isa(), scale, d, rstd, weight, x)
}
void scale_row(std::int64_t d, double rstd, const double* weight, double* x) {
  scale_loop(d, rstd, weight, x);
}

void weigh_row(std::int64_t d, float rstd, const float* weight, float* x, float* dn,
               float* d_weight) {
  TANDEM_CALL_FOR_ISA(isa(), weigh, d, rstd, weight, x, dn, d_weight)
}
void weigh_row(std::int64_t d, double rstd, const double* weight, double* x, double* dn,
               double* d_weight) {
  weigh_loop(d, rstd, weight, x, dn, d_weight);
}

void project_row(std::int64_t d, float rstd, float mean, const float* m, float* g) {
  TANDEM_CALL_FOR_ISA(isa(), project, d, rstd, mean, m, g)
}
void project_row(std::int64_t d, double rstd, double mean, const double* m, double* g) {
  project_loop(d, rstd, mean, m, g);
}

template <typename Real>
Real dot(std::int64_t d, const Real* a, const Real* b) {
  Real sum;
  dot_rows({kRealType<Real>, a, 0}, b, 0, 1, d, &sum);
  return sum;
}

template <typename Real>
std::vector<Real> weight_of(const RmsNorm& norm, int d) {
  std::vector<Real> weight(d);
  rows_to_float({norm.weight_dtype, norm.weight, 0}, 1, d, weight.data(), 0);
  return weight;
}

template <typename Real>
void load_row(DType dtype, const MatrixTensor& from, std::int64_t row, int d, Real* to) {
  rows_to_float({dtype, element_at(dtype, from.data, row * from.row_stride), 0}, 1, d, to, 0);
}

template <typename Real>
void store_row(const Real* from, int d, DType dtype, const MatrixTensor& to, std::int64_t row) {
  rows_from_float(from, 0, 1, d, Real{1},
                  {dtype, element_at(dtype, to.data, row * to.row_stride), 0});
}

template <typename Real>
void forward(DType dtype, std::int64_t M, int d, const MatrixTensor& x, const RmsNorm& norm,
             const MatrixTensor& n, Real* kept_rstd) {
  const std::vector<Real> weight = weight_of<Real>(norm, d);
  const int threads = parallel_threads();
  std::vector<std::vector<Real>> rows(threads, std::vector<Real>(d));
  parallel_for(M, threads, Schedule::kStatic, [&](std::int64_t row, int thread) {
    Real* const values = rows[thread].data();
    load_row(dtype, x, row, d, values);
    const Real rstd = norm.rstd
                          ? as<Real>(norm.rstd)[row]
                          : 1 / std::sqrt(dot(d, values, values) / d + static_cast<Real>(norm.eps));
    if (kept_rstd) kept_rstd[row] = rstd;
    scale_row(d, rstd, weight.data(), values);
    store_row(values, d, dtype, n, row);
  });
}

template <typename Real>
void backward(DType dtype, std::int64_t M, int d, const MatrixTensor& x, const RmsNorm& norm,
              const MatrixTensor& dn, const MatrixTensor& addend, const MatrixTensor& dx,
              const RmsNormWeightGradient& d_weight) {
  const std::vector<Real> weight = weight_of<Real>(norm, d);
  const std::int64_t bands = (M + kRows - 1) / kRows;
  const int threads = parallel_threads();
  struct Scratch {
    std::vector<Real> x, dn;
  };
  std::vector<Scratch> scratch(threads, {std::vector<Real>(d), std::vector<Real>(d)});
  std::vector<Real> sums(bands * d);  // of each band's rows, in their order
  parallel_for(bands, threads, Schedule::kStatic, [&](std::int64_t band, int thread) {
    Real* const m = scratch[thread].x.data();
    Real* const g = scratch[thread].dn.data();
    for (std::int64_t row = band * kRows; row < std::min(M, (band + 1) * kRows); ++row) {
      const Real rstd = as<Real>(norm.rstd)[row];
      load_row(dtype, x, row, d, m);
      load_row(dtype, dn, row, d, g);
      weigh_row(d, rstd, weight.data(), m, g, sums.data() + band * d);
      if (!dx.data) continue;
      project_row(d, rstd, dot(d, m, g) / d, m, g);
      if (addend.data) {
        load_row(dtype, addend, row, d, m);
        add_rows(1, d, m, g);
      }
      store_row(g, d, dtype, dx, row);
    }
  });
  if (!d_weight.data) return;
  std::vector<Real> total(d);
  add_rows(bands, d, sums.data(), total.data());
  if (d_weight.accumulate) {
    std::vector<Real> before(d);
    rows_to_float({d_weight.dtype, d_weight.data, 0}, 1, d, before.data(), 0);
    add_rows(1, d, before.data(), total.data());
  }
  rows_from_float(total.data(), 0, 1, d, Real{1}, {d_weight.dtype, d_weight.data, 0});
}

}  // namespace

void rms_norm_forward(DType dtype, std::int64_t M, int d, const MatrixTensor& x,
                      const RmsNorm& norm, const MatrixTensor& n, float* kept_rstd) {
  run_with_real(
      dtype, [&]<typename Real>() { forward<Real>(dtype, M, d, x, norm, n, as<Real>(kept_rstd)); });
}

void rms_norm_backward(DType dtype, std::int64_t M, int d, const MatrixTensor& x,
                       const RmsNorm& norm, const MatrixTensor& dn, const MatrixTensor& addend,
                       const MatrixTensor& dx, const RmsNormWeightGradient& d_weight) {
  run_with_real(dtype, [&]<typename Real>() {
    backward<Real>(dtype, M, d, x, norm, dn, addend, dx, d_weight);
  });
}

void rms_norm_forward(const RmsNormForwardProblem& p) {
  rms_norm_forward(p.dtype, p.M, p.d, p.x, p.norm, p.n, p.kept_rstd);
}

void rms_norm_backward(const RmsNormBackwardProblem& p) {
  rms_norm_backward(p.dtype, p.M, p.d, p.x, p.norm, p.dn, p.addend, p.dx,
                    {p.d_weight.dtype, p.d_weight.data, p.accumulate});
}

}  // namespace tandem::cpu
