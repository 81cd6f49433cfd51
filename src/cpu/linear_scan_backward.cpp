// linear_scan's backward on the CPU: the scan's backward, with x as the forward kept it or made
// again tile by tile, and the two products du = dx W and d_weight = dx^T u.
//
// dx is kept in fp32 (fp64 in a call of that), 4 B T D bytes, when one of the products needs it. A
// block of d_weight is one thread's, which adds up the tokens in order, so that the bits are the
// same for any number of threads.
#include <algorithm>
#include <cstdint>
#include <optional>
#include <vector>

#include "core/real.h"
#include "cpu/isa.h"
#include "cpu/linear_scan_projection.h"
#include "cpu/scan_backward_walk.h"
#include "ops/linear_scan.h"

namespace tandem::cpu {
namespace {

template <typename Real>
class Products {
 public:
  /// Takes dx [B,T,D], contiguous.
  Products(const LinearScanBackwardProblem& problem, const Real* dx, MatmulProvider provider)
      : p_(problem), f_(problem.forward), dx_(dx), provider_(provider), end_(f_.T) {
    if (!f_.cu_seqlens) return;
    begin_ = f_.cu_seqlens[0];
    end_ = f_.cu_seqlens[f_.N];
  }

  void write_du() const {
    std::vector<Real> weight(std::int64_t{f_.D} * f_.d);
    rows_to_float({f_.dtype, f_.weight.data, f_.weight.row_stride}, f_.D, f_.d, weight.data(),
                  f_.d);
    clear_outside(f_, f_.dtype, p_.du, f_.d);
    // Pieces of each sequence on its own: how a product of many rows sums may depend on their
    // number.
    struct Piece {
      std::int64_t b, begin, rows;
    };
    std::vector<Piece> pieces;
    for (const Sequence& one : sequences_of(f_.cu_seqlens, f_.N, f_.T)) {
      for (std::int64_t t = one.begin; t < one.end; t += kRows) {
        pieces.push_back({one.b, t, std::min(kRows, one.end - t)});
      }
    }
    const int threads = parallel_threads();
    std::vector<std::vector<Real>> du(threads, std::vector<Real>(std::int64_t{kRows} * f_.d));
    parallel_for(std::ssize(pieces), threads, Schedule::kStatic, [&](std::int64_t i, int thread) {
      const auto [b, t, rows] = pieces[i];
      matmul(provider_, {.M = rows,
                         .N = f_.d,
                         .K = f_.D,
                         .dtype = kRealType<Real>,
                         .a = {dx_ + (b * f_.T + t) * f_.D, f_.D},
                         .b = {weight.data(), f_.d},
                         .c = du[thread].data(),
                         .c_stride = f_.d});
      const std::int64_t at = b * p_.du.batch_stride + t * p_.du.time_stride;
      rows_from_float(du[thread].data(), f_.d, rows, f_.d, 1.0f,
                      {f_.dtype, element_at(f_.dtype, p_.du.data, at), p_.du.time_stride});
    });
  }

  void write_d_weight() const {
    const int threads = parallel_threads();
    const std::int64_t down = (f_.D + kBlock - 1) / kBlock, across = (f_.d + kBlock - 1) / kBlock;
    struct Scratch {
      std::vector<Real> u, sum;
    };
    std::vector<Scratch> scratch(
        threads, {std::vector<Real>(kRows * kBlock), std::vector<Real>(kBlock * kBlock)});
    parallel_for(down * across, threads, Schedule::kStatic, [&](std::int64_t i, int thread) {
      const std::int64_t row = i / across * kBlock, column = i % across * kBlock;
      const std::int64_t M = std::min(kBlock, f_.D - row), N = std::min(kBlock, f_.d - column);
      auto& [u, sum] = scratch[thread];
      std::fill(sum.begin(), sum.end(), Real{0});
      for (std::int64_t b = 0; b < f_.B; ++b) {
        for (std::int64_t t = begin_; t < end_; t += kRows) {
          const std::int64_t rows = std::min(kRows, end_ - t);
          const std::int64_t at = b * f_.u.batch_stride + t * f_.u.time_stride + column;
          rows_to_float({f_.dtype, element_at(f_.dtype, f_.u.data, at), f_.u.time_stride}, rows, N,
                        u.data(), kBlock);
          matmul(provider_, {.M = M,
                             .N = N,
                             .K = rows,
                             .dtype = kRealType<Real>,
                             .a = {dx_ + (b * f_.T + t) * f_.D + row, f_.D, true},
                             .b = {u.data(), kBlock},
                             .c = sum.data(),
                             .c_stride = kBlock,
                             .accumulate = true});
        }
      }
      const std::int64_t at = row * p_.d_weight.row_stride + column;
      rows_from_float(
          sum.data(), kBlock, M, N, 1.0f,
          {f_.dtype, element_at(f_.dtype, p_.d_weight.data, at), p_.d_weight.row_stride});
    });
  }

 private:
  static constexpr std::int64_t kRows = 256;   // tokens of a product
  static constexpr std::int64_t kBlock = 128;  // rows and columns of a block of d_weight

  const LinearScanBackwardProblem& p_;
  const LinearScanForwardProblem& f_;
  const Real* dx_;
  MatmulProvider provider_;
  // Tokens [begin_, end_) belong to sequences. why: outside of them u may hold anything.
  std::int64_t begin_ = 0;
  std::int64_t end_;
};

}  // namespace

void linear_scan_backward(const LinearScanBackwardProblem& problem, const CallOptions& options) {
  const LinearScanForwardProblem& f = problem.forward;
  check_cu_seqlens("linear_scan_backward", f.cu_seqlens, f.N, f.T);
  isa();  // throws before anything is written
  const MatmulProvider provider = matmul_provider(options);
  run_with_real(f.dtype, [&]<typename Real>() {
    std::optional<LinearScanProjection<Real>> project;
    if (!problem.x.data) project.emplace(f, provider);
    const auto load_x = [&](const ScanTile& tile, int thread, Real* x) {
      if (project) return (*project)(tile, thread, x);
      load_tile(f.dtype, problem.x, tile, x);
    };
    std::vector<Real> dx;
    if (problem.du.data || problem.d_weight.data) dx.resize(f.B * f.T * f.D);
    const TokenTensor dx_tensor{dx.empty() ? nullptr : dx.data(), f.T * f.D, f.D};
    ScanBackwardWalk<Real, decltype(load_x)>(f, problem, dx_tensor, kRealType<Real>, load_x).run();
    const Products<Real> products(problem, dx.data(), provider);
    if (problem.du.data) products.write_du();
    if (problem.d_weight.data) products.write_d_weight();
  });
}

}  // namespace tandem::cpu
