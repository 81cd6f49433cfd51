#include "cpu/output_norm.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "core/real.h"
#include "cpu/column_sums.h"
#include "cpu/elementwise.h"
#include "cpu/isa.h"
#include "cpu/parallel.h"

namespace tandem::cpu {
namespace {

// why a function per loop: __restrict of parameters outlives inlining.
#define TANDEM_LOOP        \
  template <typename Real> \
  TANDEM_ALWAYS_INLINE void

/// x = (x - mean) rstd.
TANDEM_LOOP standardize_loop(std::int64_t d, Real mean, Real rstd, Real* __restrict x) {
  for (std::int64_t j = 0; j < d; ++j) x[j] = (x[j] - mean) * rstd;
}

TANDEM_LOOP affine_loop(std::int64_t d, const Real* __restrict weight, const Real* __restrict bias,
                        Real* __restrict x) {
  for (std::int64_t j = 0; j < d; ++j) x[j] = x[j] * weight[j] + bias[j];
}

/// d_out m is added to d_weight, and d_out becomes g = d_out weight.
TANDEM_LOOP weigh_loop(std::int64_t d, const Real* __restrict m, const Real* __restrict weight,
                       Real* __restrict d_out, Real* __restrict d_weight) {
  for (std::int64_t j = 0; j < d; ++j) {
    d_weight[j] += d_out[j] * m[j];
    d_out[j] *= weight[j];
  }
}

/// rstd (g - m along - mean), over g.
TANDEM_LOOP project_loop(std::int64_t d, Real rstd, Real along, Real mean, const Real* __restrict m,
                         Real* __restrict g) {
  for (std::int64_t j = 0; j < d; ++j) g[j] = rstd * (g[j] - m[j] * along - mean);
}

#undef TANDEM_LOOP

TANDEM_FOR_EACH_ISA(standardize, (std::int64_t d, float mean, float rstd, float* x),
                    standardize_loop(d, mean, rstd, x))
TANDEM_FOR_EACH_ISA(affine, (std::int64_t d, const float* weight, const float* bias, float* x),
                    affine_loop(d, weight, bias, x))
TANDEM_FOR_EACH_ISA(weigh,
                    (std::int64_t d, const float* m, const float* weight, float* d_out,
                     float* d_weight),
                    weigh_loop(d, m, weight, d_out, d_weight))
TANDEM_FOR_EACH_ISA(project,
                    (std::int64_t d, float rstd, float along, float mean, const float* m, float* g),
                    project_loop(d, rstd, along, mean, m, g))

void standardize_row(std::int64_t d, float mean, float rstd, float* x) {
  TANDEM_CALL_FOR_ISA(isa(), standardize, d, mean, rstd, x)
}
void standardize_row(std::int64_t d, double mean, double rstd, double* x) {
  standardize_loop(d, mean, rstd, x);
}

void scale_and_shift(std::int64_t d, const float* weight, const float* bias, float* x) {
  TANDEM_CALL_FOR_ISA(isa(), affine, d, weight, bias, x)
}
void scale_and_shift(std::int64_t d, const double* weight, const double* bias, double* x) {
  affine_loop(d, weight, bias, x);
}

void weigh_row(std::int64_t d, const float* m, const float* weight, float* d_out, float* d_weight) {
  TANDEM_CALL_FOR_ISA(isa(), weigh, d, m, weight, d_out, d_weight)
}
void weigh_row(std::int64_t d, const double* m, const double* weight, double* d_out,
               double* d_weight) {
  weigh_loop(d, m, weight, d_out, d_weight);
}

void project_row(std::int64_t d, float rstd, float along, float mean, const float* m, float* g) {
  TANDEM_CALL_FOR_ISA(isa(), project, d, rstd, along, mean, m, g)
}
void project_row(std::int64_t d, double rstd, double along, double mean, const double* m,
                 double* g) {
  project_loop(d, rstd, along, mean, m, g);
}

ConstRows matrix_row(DType dtype, const MatrixTensor& from, std::int64_t row) {
  return {dtype, element_at(dtype, from.data, row * from.row_stride), 0};
}

template <typename Real>
std::vector<Real> vector_of(const WeightVector& from, int d, Real absent) {
  std::vector<Real> values(d, absent);
  if (from.data) rows_to_float({from.dtype, from.data, 0}, 1, d, values.data(), 0);
  return values;
}

/// Means over rows.
template <typename Real>
class RowMeans {
 public:
  RowMeans(OutputNorm norm, int d) : d_(d), centers_(norm == OutputNorm::kLayerNorm), ones_(d, 1) {}

  /// The mean of x y.
  Real mean_of(const Real* x, const Real* y) const {
    Real sum;
    dot_rows({kRealType<Real>, x, 0}, y, 0, 1, d_, &sum);
    return sum / static_cast<Real>(d_);
  }
  /// What a layer norm takes off x; 0 of another norm.
  Real center(const Real* x) const { return centers_ ? mean_of(x, ones_.data()) : Real{0}; }

 private:
  std::int64_t d_;
  bool centers_;
  std::vector<Real> ones_;
};

template <typename Real>
void forward(const GatedOutputForwardProblem& p, const MatrixTensor& sum) {
  const std::vector<Real> weight = vector_of<Real>(p.norm_weight, p.d, 1);
  const std::vector<Real> bias = vector_of<Real>(p.norm_bias, p.d, 0);
  const RowMeans<Real> means(p.norm, p.d);
  const int threads = parallel_threads();
  std::vector<std::vector<Real>> scratch(threads, std::vector<Real>(p.d));
  parallel_for(p.M, threads, Schedule::kStatic, [&](std::int64_t row, int thread) {
    Real* const x = scratch[thread].data();
    rows_to_float(matrix_row(p.dtype, sum, row), 1, p.d, x, 0);
    const Real mean = means.center(x);
    standardize_row(p.d, mean, Real{1}, x);
    const Real rstd = 1 / std::sqrt(means.mean_of(x, x) + static_cast<Real>(p.eps));
    if (p.mean) as<Real>(p.mean)[row] = mean;
    if (p.rstd) as<Real>(p.rstd)[row] = rstd;
    standardize_row(p.d, Real{0}, rstd, x);
    scale_and_shift(p.d, weight.data(), bias.data(), x);
    void* const out = element_at(p.dtype, p.out.data, row * p.out.row_stride);
    rows_from_float(x, 0, 1, p.d, Real{1}, {p.dtype, out, 0});
  });
}

template <typename Real>
class Backward {
 public:
  Backward(const GatedOutputBackwardProblem& problem, const MatrixTensor& d_residual)
      : p_(problem),
        d_residual_(d_residual),
        means_(problem.norm, problem.d),
        weight_(vector_of<Real>(problem.norm_weight, problem.d, 1)),
        // why always: g is made in the same loop.
        d_weight_(true, problem.M, problem.d),
        d_bias_(problem.d_norm_bias.data != nullptr, problem.M, problem.d) {}

  void run() {
    const int threads = parallel_threads();
    std::vector<Scratch> scratch(threads, {std::vector<Real>(p_.d), std::vector<Real>(p_.d)});
    parallel_for(band_count(p_.M), threads, Schedule::kStatic, [&](std::int64_t band, int thread) {
      for (std::int64_t row = band * kBandRows; row < std::min(p_.M, (band + 1) * kBandRows);
           ++row) {
        differentiate(band, row, scratch[thread].m.data(), scratch[thread].g.data());
      }
    });
    write(d_weight_, p_.d_norm_weight);
    write(d_bias_, p_.d_norm_bias);
  }

 private:
  struct Scratch {
    std::vector<Real> m, g;
  };

  void differentiate(std::int64_t band, std::int64_t row, Real* m, Real* g) {
    if (p_.d_out.data) {
      const Real rstd = as<Real>(p_.rstd)[row];
      rows_to_float(matrix_row(p_.dtype, p_.sum, row), 1, p_.d, m, 0);
      standardize_row(p_.d, p_.mean ? as<Real>(p_.mean)[row] : Real{0}, rstd, m);
      rows_to_float(matrix_row(p_.dtype, p_.d_out, row), 1, p_.d, g, 0);
      if (Real* const sum = d_bias_.band(band)) add_rows(1, p_.d, g, sum);
      weigh_row(p_.d, m, weight_.data(), g, d_weight_.band(band));
      if (!d_residual_.data) return;
      project_row(p_.d, rstd, means_.mean_of(g, m), means_.center(g), m, g);
    } else {
      std::fill_n(g, p_.d, Real{0});
    }
    if (!d_residual_.data) return;
    if (p_.d_sum.data) {
      rows_to_float(matrix_row(p_.dtype, p_.d_sum, row), 1, p_.d, m, 0);
      add_rows(1, p_.d, m, g);
    }
    void* const to = element_at(p_.dtype, d_residual_.data, row * d_residual_.row_stride);
    rows_from_float(g, 0, 1, p_.d, Real{1}, {p_.dtype, to, 0});
  }

  void write(const ColumnSums<Real>& sums, const WeightVectorGradient& to) const {
    if (to.data) sums.write(to.dtype, to.data, p_.d, p_.accumulate);
  }

  const GatedOutputBackwardProblem& p_;
  const MatrixTensor& d_residual_;
  RowMeans<Real> means_;
  std::vector<Real> weight_;
  ColumnSums<Real> d_weight_, d_bias_;
};

}  // namespace

void output_norm_forward(const GatedOutputForwardProblem& problem, const MatrixTensor& sum) {
  run_with_real(problem.dtype, [&]<typename Real>() { forward<Real>(problem, sum); });
}

void output_norm_backward(const GatedOutputBackwardProblem& problem,
                          const MatrixTensor& d_residual) {
  run_with_real(problem.dtype, [&]<typename Real>() { Backward<Real>(problem, d_residual).run(); });
}

}  // namespace tandem::cpu
