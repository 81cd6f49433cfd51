// The passes around Mamba-2's recurrence on the CPU, in fp32 or, of fp64, in fp64.
#include "ops/mamba2.h"

#include <cmath>
#include <vector>

#include "core/real.h"
#include "cpu/elementwise.h"
#include "cpu/parallel.h"

namespace tandem::cpu {
namespace {

template <typename Real>
std::vector<Real> values_of(const WeightVector& vector, int count) {
  std::vector<Real> values(count);
  rows_to_float({vector.dtype, vector.data, 0}, 1, count, values.data(), 0);
  return values;
}

template <typename Real>
void load_row(DType dtype, const MatrixTensor& from, std::int64_t row, std::vector<Real>& to) {
  rows_to_float({dtype, element_at(dtype, from.data, row * from.row_stride), 0}, 1,
                static_cast<std::int64_t>(to.size()), to.data(), 0);
}

template <typename Real>
void store_row(const std::vector<Real>& from, DType dtype, const MatrixTensor& to,
               std::int64_t row) {
  rows_from_float(from.data(), 0, 1, static_cast<std::int64_t>(from.size()), Real{1},
                  {dtype, element_at(dtype, to.data, row * to.row_stride), 0});
}

template <typename Real>
void discretize(const DiscretizeProblem& p) {
  std::vector<Real> rates = values_of<Real>(p.A_log, p.H);
  for (Real& rate : rates) rate = -std::exp(rate);
  const int threads = parallel_threads();
  std::vector<std::vector<Real>> rows(threads, std::vector<Real>(p.H * p.P));
  parallel_for(p.M, threads, Schedule::kStatic, [&](std::int64_t row, int thread) {
    std::vector<Real>& v = rows[thread];
    load_row(p.dtype, p.x, row, v);
    for (int h = 0; h < p.H; ++h) {
      const Real dt = as<Real>(p.dt)[row * p.H + h];
      as<Real>(p.log_decay)[row * p.H + h] = rates[h] * dt;
      for (int j = h * p.P; j < (h + 1) * p.P; ++j) v[j] *= dt;
    }
    store_row(v, p.dtype, p.v, row);
  });
}

template <typename Real>
void add_skip(const SkipProblem& p) {
  const std::vector<Real> D = values_of<Real>(p.D, p.H);
  const int threads = parallel_threads();
  std::vector<std::vector<Real>> xs(threads, std::vector<Real>(p.H * p.P)), os = xs;
  parallel_for(p.M, threads, Schedule::kStatic, [&](std::int64_t row, int thread) {
    std::vector<Real>&x = xs[thread], &o = os[thread];
    load_row(p.dtype, p.x, row, x);
    load_row(p.dtype, p.o, row, o);
    for (int j = 0; j < p.H * p.P; ++j) o[j] += D[j / p.P] * x[j];
    store_row(o, p.dtype, p.o, row);
  });
}

}  // namespace

void discretize(const DiscretizeProblem& problem) {
  run_with_real(problem.dtype, [&]<typename Real>() { discretize<Real>(problem); });
}

void add_skip(const SkipProblem& problem) {
  run_with_real(problem.dtype, [&]<typename Real>() { add_skip<Real>(problem); });
}

}  // namespace tandem::cpu
