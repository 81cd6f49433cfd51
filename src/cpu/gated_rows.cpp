#include "cpu/gated_rows.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "core/real.h"
#include "cpu/column_sums.h"
#include "cpu/elementwise.h"
#include "cpu/isa.h"
#include "cpu/parallel.h"
#include "cpu/projection_tile.h"

namespace tandem::cpu {
namespace {

// why a function per loop: __restrict of parameters outlives inlining.
#define TANDEM_LOOP        \
  template <typename Real> \
  TANDEM_ALWAYS_INLINE void

TANDEM_LOOP scale_loop(std::int64_t count, Real factor, Real* __restrict x) {
  for (std::int64_t j = 0; j < count; ++j) x[j] *= factor;
}

TANDEM_LOOP product_loop(std::int64_t count, const Real* __restrict a, const Real* __restrict b,
                         Real* __restrict out) {
  for (std::int64_t j = 0; j < count; ++j) out[j] = a[j] * b[j];
}

TANDEM_LOOP add_product_loop(std::int64_t count, const Real* __restrict a, const Real* __restrict b,
                             Real* __restrict sum) {
  for (std::int64_t j = 0; j < count; ++j) sum[j] += a[j] * b[j];
}

/// rstd (g - n mean), over g.
TANDEM_LOOP project_loop(std::int64_t count, Real rstd, Real mean, const Real* __restrict n,
                         Real* __restrict g) {
  for (std::int64_t j = 0; j < count; ++j) g[j] = rstd * (g[j] - n[j] * mean);
}

#undef TANDEM_LOOP

TANDEM_FOR_EACH_ISA(scale, (std::int64_t count, float factor, float* x),
                    scale_loop(count, factor, x))
TANDEM_FOR_EACH_ISA(product, (std::int64_t count, const float* a, const float* b, float* out),
                    product_loop(count, a, b, out))
TANDEM_FOR_EACH_ISA(add_product, (std::int64_t count, const float* a, const float* b, float* sum),
                    add_product_loop(count, a, b, sum))
TANDEM_FOR_EACH_ISA(project, (std::int64_t count, float rstd, float mean, const float* n, float* g),
                    project_loop(count, rstd, mean, n, g))

void scale_group(std::int64_t count, float factor, float* x) {
  TANDEM_CALL_FOR_ISA(isa(), scale, count, factor, x)
}
void scale_group(std::int64_t count, double factor, double* x) { scale_loop(count, factor, x); }

void multiply(std::int64_t count, const float* a, const float* b, float* out) {
  TANDEM_CALL_FOR_ISA(isa(), product, count, a, b, out)
}
void multiply(std::int64_t count, const double* a, const double* b, double* out) {
  product_loop(count, a, b, out);
}

void add_products(std::int64_t count, const float* a, const float* b, float* sum) {
  TANDEM_CALL_FOR_ISA(isa(), add_product, count, a, b, sum)
}
void add_products(std::int64_t count, const double* a, const double* b, double* sum) {
  add_product_loop(count, a, b, sum);
}

void project_group(std::int64_t count, float rstd, float mean, const float* n, float* g) {
  TANDEM_CALL_FOR_ISA(isa(), project, count, rstd, mean, n, g)
}
void project_group(std::int64_t count, double rstd, double mean, const double* n, double* g) {
  project_loop(count, rstd, mean, n, g);
}

template <typename Real>
void load_row(DType dtype, const MatrixTensor& from, std::int64_t row, std::int64_t columns,
              Real* to) {
  rows_to_float({dtype, element_at(dtype, from.data, row * from.row_stride), 0}, 1, columns, to, 0);
}

template <typename Real>
void store_row(const Real* from, std::int64_t columns, DType dtype, const MatrixTensor& to,
               std::int64_t row) {
  if (!to.data) return;
  rows_from_float(from, 0, 1, columns, Real{1},
                  {dtype, element_at(dtype, to.data, row * to.row_stride), 0});
}

/// Values of a row.
template <typename Real>
struct Row {
  explicit Row(std::int64_t d_in)
      : o(d_in), value(d_in), slope(d_in), n(d_in), g(d_in), d_value(d_in), rstd(d_in) {}

  std::vector<Real> o, value, slope;  // of the gate: f(gate) and f'(gate)
  std::vector<Real> n;                // y rstd
  std::vector<Real> g, d_value;       // gradients
  std::vector<Real> rstd;             // of each group
};

template <typename Real>
class Rows {
 public:
  Rows(DType dtype, int d_in, const GatedRows& rows)
      : dtype_(dtype),
        d_in_(d_in),
        p_(rows),
        groups_(rows.group_width ? d_in / rows.group_width : 0) {
    if (!groups_) return;
    weight_.resize(d_in);
    const WeightVector& weight = p_.group_norm_weight;
    const std::int64_t given = p_.group_weight_repeats ? p_.group_width : d_in;
    rows_to_float({weight.dtype, weight.data, 0}, 1, given, weight_.data(), 0);
    for (std::int64_t j = given; j < d_in; ++j) weight_[j] = weight_[j - given];
  }

  std::int64_t groups() const { return groups_; }
  bool has_gate() const { return p_.gate.data != nullptr; }

  /// Loads o and the gate's value and slope.
  void load(std::int64_t index, Row<Real>& row) const {
    load_row(dtype_, p_.o, index, d_in_, row.o.data());
    if (!has_gate()) return;
    load_row(dtype_, p_.gate, index, d_in_, row.value.data());
    if (p_.gate_activation == OutputGate::kNone) {
      return std::fill(row.slope.begin(), row.slope.end(), Real{1});
    }
    const Activation kind =
        p_.gate_activation == OutputGate::kSilu ? Activation::kSilu : Activation::kSigmoid;
    activate(ActivationOf<Real>{kind, 1, 0, 0}, d_in_, row.value.data(), row.slope.data());
  }

  /// Computes n of a group norm, and rstd where it is not given.
  void normalize(std::int64_t index, const GroupRstd& group_rstd, Row<Real>& row) const {
    if (p_.norm_behind_gate) {
      multiply(d_in_, row.o.data(), row.value.data(), row.n.data());
    } else {
      std::copy(row.o.begin(), row.o.end(), row.n.begin());
    }
    const std::int64_t width = p_.group_width;
    const MatrixTensor& given = group_rstd.given;
    if (given.data) {
      load_row(kRealType<Real>, given, index, groups_, row.rstd.data());
    } else {
      dot_rows({kRealType<Real>, row.n.data(), width}, row.n.data(), width, groups_, width,
               row.rstd.data());
      for (std::int64_t i = 0; i < groups_; ++i) {
        row.rstd[i] = 1 / std::sqrt(row.rstd[i] / static_cast<Real>(width) +
                                    static_cast<Real>(group_rstd.eps));
      }
    }
    store_row(row.rstd.data(), groups_, kRealType<Real>, group_rstd.kept, index);
    for (std::int64_t i = 0; i < groups_; ++i) {
      scale_group(width, row.rstd[i], row.n.data() + i * width);
    }
  }

  /// a, in row.g.
  void gate(Row<Real>& row) const {
    Real* const a = row.g.data();
    if (!groups_) return multiply(d_in_, row.o.data(), row.value.data(), a);
    multiply(d_in_, row.n.data(), weight_.data(), a);
    if (has_gate() && !p_.norm_behind_gate) multiply_by_slope(d_in_, row.value.data(), a);
  }

  /// From row.g = d_a: row.g = d_o, row.d_value the gradient by the gate's value. What a row adds
  /// to the gradient by the weight goes to d_weight, or nowhere.
  void differentiate(Row<Real>& row, Real* d_weight) const {
    Real *const g = row.g.data(), *const d_value = row.d_value.data();
    if (!groups_) return differentiate_product(row.o.data(), row);
    if (has_gate() && !p_.norm_behind_gate) {
      multiply(d_in_, row.n.data(), weight_.data(), d_value);
      multiply_by_slope(d_in_, g, d_value);
      multiply_by_slope(d_in_, row.value.data(), g);
    }
    if (d_weight) add_products(d_in_, g, row.n.data(), d_weight);
    multiply_by_slope(d_in_, weight_.data(), g);
    const std::int64_t width = p_.group_width;
    for (std::int64_t i = 0; i < groups_; ++i) {
      const Real* const n = row.n.data() + i * width;
      Real along;
      dot_rows({kRealType<Real>, n, 0}, g + i * width, 0, 1, width, &along);
      project_group(width, row.rstd[i], along / static_cast<Real>(width), n, g + i * width);
    }
    if (p_.norm_behind_gate) differentiate_product(row.o.data(), row);
  }

 private:
  /// Of o value, its gradient in row.g.
  void differentiate_product(const Real* o, Row<Real>& row) const {
    multiply(d_in_, row.g.data(), o, row.d_value.data());
    multiply_by_slope(d_in_, row.value.data(), row.g.data());
  }

  DType dtype_;
  std::int64_t d_in_;
  const GatedRows& p_;
  std::int64_t groups_;
  std::vector<Real> weight_;  // [d_in]
};

template <typename Real>
void forward(DType dtype, std::int64_t M, int d_in, const GatedRows& p, const GroupRstd& group_rstd,
             const MatrixTensor& a) {
  const Rows<Real> rows(dtype, d_in, p);
  const int threads = parallel_threads();
  std::vector<Row<Real>> scratch(threads, Row<Real>(d_in));
  parallel_for(M, threads, Schedule::kStatic, [&](std::int64_t i, int thread) {
    Row<Real>& row = scratch[thread];
    rows.load(i, row);
    if (rows.groups()) rows.normalize(i, group_rstd, row);
    rows.gate(row);
    store_row(row.g.data(), d_in, dtype, a, i);
  });
}

template <typename Real>
void backward(const GatedOutputBackwardProblem& p, const MatrixTensor& d_a) {
  const std::int64_t d_in = p.d_in;
  const Rows<Real> rows(p.dtype, p.d_in, p.rows);
  const int threads = parallel_threads();
  std::vector<Row<Real>> scratch(threads, Row<Real>(d_in));
  const WeightVectorGradient& d_weight = p.d_group_norm_weight;
  ColumnSums<Real> sums(d_weight.data != nullptr, p.M, d_in);
  parallel_for(band_count(p.M), threads, Schedule::kStatic, [&](std::int64_t band, int thread) {
    Row<Real>& row = scratch[thread];
    for (std::int64_t i = band * kBandRows; i < std::min(p.M, (band + 1) * kBandRows); ++i) {
      rows.load(i, row);
      if (rows.groups()) rows.normalize(i, {.given = p.group_rstd}, row);
      load_row(p.dtype, d_a, i, d_in, row.g.data());
      rows.differentiate(row, sums.band(band));
      store_row(row.g.data(), d_in, p.dtype, p.d_o, i);
      if (!p.d_gate.data) continue;
      multiply_by_slope(d_in, row.slope.data(), row.d_value.data());
      store_row(row.d_value.data(), d_in, p.dtype, p.d_gate, i);
    }
  });
  sums.write(d_weight.dtype, d_weight.data, p.rows.group_weight_repeats ? p.rows.group_width : d_in,
             p.accumulate);
}

}  // namespace

void gated_rows_forward(DType dtype, std::int64_t M, int d_in, const GatedRows& rows,
                        const GroupRstd& group_rstd, const MatrixTensor& a) {
  run_with_real(dtype,
                [&]<typename Real>() { forward<Real>(dtype, M, d_in, rows, group_rstd, a); });
}

void gated_rows_backward(const GatedOutputBackwardProblem& problem, const MatrixTensor& d_a) {
  run_with_real(problem.dtype, [&]<typename Real>() { backward<Real>(problem, d_a); });
}

}  // namespace tandem::cpu
