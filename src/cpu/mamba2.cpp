// The passes around Mamba-2's recurrence on the CPU, in fp32 or, of fp64, in fp64.
#include "ops/mamba2.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
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

/// Rounds the sum of each band's sums, [bands,2,H], the ones that begin at `first`.
template <typename Real>
void store_sums(const std::vector<Real>& sums, int first, int H, const WeightVectorGradient& to) {
  if (!to.data) return;
  std::vector<Real> total(H);
  for (std::size_t i = first; i < sums.size(); i += 2 * H) {
    for (int h = 0; h < H; ++h) total[h] += sums[i + h];
  }
  rows_from_float(total.data(), 0, 1, H, Real{1}, {to.dtype, to.data, 0});
}

template <typename Real>
void backward(const Mamba2BackwardProblem& p) {
  constexpr std::int64_t kRows = 64;  // of a band, whose sums are added up apart
  const std::vector<Real> D = values_of<Real>(p.D, p.H), A_log = values_of<Real>(p.A_log, p.H);
  const std::int64_t bands = (p.M + kRows - 1) / kRows;
  const int threads = parallel_threads();
  struct Rows {
    std::vector<Real> x, d_o, dv;
  };
  const std::vector<Real> row(p.H * p.P);
  std::vector<Rows> scratch(threads, {row, row, row});
  std::vector<Real> sums(bands * 2 * p.H);
  parallel_for(bands, threads, Schedule::kStatic, [&](std::int64_t band, int thread) {
    auto& [x, d_o, dv] = scratch[thread];
    Real* const of_A_log = &sums[band * 2 * p.H];
    Real* const of_D = of_A_log + p.H;
    for (std::int64_t m = band * kRows; m < std::min(p.M, (band + 1) * kRows); ++m) {
      load_row(p.dtype, p.x, m, x);
      load_row(p.dtype, p.d_o, m, d_o);
      load_row(p.dtype, p.dv, m, dv);
      for (int h = 0; h < p.H; ++h) {
        const std::int64_t i = m * p.H + h;
        const Real dt = as<Real>(p.dt)[i], d_log_decay = as<Real>(p.d_log_decay)[i];
        Real d_dt = -std::exp(A_log[h]) * d_log_decay;
        of_A_log[h] += d_log_decay * as<Real>(p.log_decay)[i];
        for (int j = h * p.P; j < (h + 1) * p.P; ++j) {
          d_dt += dv[j] * x[j];
          of_D[h] += d_o[j] * x[j];
          dv[j] = dv[j] * dt + D[h] * d_o[j];
        }
        as<Real>(p.d_dt)[i] = d_dt;
      }
      store_row(dv, p.dtype, p.dx, m);
    }
  });
  store_sums(sums, 0, p.H, p.d_A_log);
  store_sums(sums, p.H, p.H, p.d_D);
}

}  // namespace

void mamba2_backward(const Mamba2BackwardProblem& problem) {
  run_with_real(problem.dtype, [&]<typename Real>() { backward<Real>(problem); });
}

void discretize(const DiscretizeProblem& problem) {
  run_with_real(problem.dtype, [&]<typename Real>() { discretize<Real>(problem); });
}

void add_skip(const SkipProblem& problem) {
  run_with_real(problem.dtype, [&]<typename Real>() { add_skip<Real>(problem); });
}

}  // namespace tandem::cpu
