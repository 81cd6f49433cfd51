// projection's backward on the CPU, in bands of kBand rows: dz of a band in fp32 (fp64 in a call of
// that), then its rows of dx, and what it adds to d_weight and d_bias.
//
// The sums over rows are kept in fp32, columns * d of them. One thread adds up a block of them,
// band by band, so that the bits are the same for any number of threads. Products for dx are padded
// with zeros (matmul_rows), so that a row's bits do not depend on how many others there are.
#include <algorithm>
#include <cstdint>
#include <vector>

#include "core/real.h"
#include "cpu/elementwise.h"
#include "cpu/isa.h"
#include "cpu/matmul.h"
#include "cpu/parallel.h"
#include "cpu/projection_heads.h"
#include "cpu/projection_tile.h"
#include "ops/projection.h"

namespace tandem::cpu {
namespace {

constexpr std::int64_t kRows = 64;
constexpr std::int64_t kBand = 512;
constexpr std::int64_t kBlock = 256;  // rows and columns of a block of d_weight, columns of dx

std::int64_t pieces(std::int64_t count, std::int64_t size) { return (count + size - 1) / size; }

template <typename Real>
class Backward {
 public:
  Backward(const ProjectionBackwardProblem& problem, MatmulProvider provider)
      : p_(problem), provider_(provider), threads_(parallel_threads()) {
    for (int i = 0; i < p_.segment_count; ++i) segments_.push_back(Segment{&p_.segments[i]});
  }

  void run() {
    // why not for M = 0: sums are written, too, where there is nothing to add up.
    for (Segment& one : segments_) prepare(one);
    x_.resize(std::min(kBand, p_.M) * p_.d);
    for (std::int64_t row = 0; row < p_.M; row += kBand) {
      const std::int64_t rows = std::min(kBand, p_.M - row);
      load(row, rows);
      if (p_.dx.data) write_dx(row, rows);
      for (Segment& one : segments_) add_up(one, rows);
    }
    for (const Segment& one : segments_) write_sums(one);
  }

 private:
  struct Segment {
    const ProjectionBackwardSegment* p;
    std::vector<Real> dz = {};      // [kBand,columns], rows past the last are 0
    std::vector<Real> weight = {};  // where dx cannot take it as it lies
    std::vector<Real> d_weight = {}, d_bias = {};
    std::vector<Real> head_norm_weight = {}, d_head_norm_weight = {};
    std::vector<Real> head_sums = {};  // of each kRows rows of a band

    bool has_gradient() const { return p->d_out.data != nullptr; }
  };

  void prepare(Segment& one) const {
    const ProjectionBackwardSegment& s = *one.p;
    if (s.d_weight.data) one.d_weight.resize(std::int64_t{s.columns} * p_.d);
    if (s.d_bias) one.d_bias.resize(s.columns);
    if (s.d_head_norm_weight) one.d_head_norm_weight.resize(s.head_width);
    if (s.heads.normalizes()) {
      one.head_norm_weight.resize(s.head_width);
      rows_to_float({s.heads.norm_weight_dtype, s.heads.norm_weight, 0}, 1, s.head_width,
                    one.head_norm_weight.data(), 0);
    }
    if (!one.has_gradient()) return;
    one.dz.resize(std::min(kBand, pieces(p_.M, kRows) * kRows) * s.columns);
    // A product's rows must not overlap.
    if (!p_.dx.data || (p_.dtype == kRealType<Real> && s.weight.row_stride >= p_.d)) return;
    one.weight.resize(std::int64_t{s.columns} * p_.d);
    parallel_for(pieces(s.columns, kRows), threads_, Schedule::kStatic, [&](std::int64_t i, int) {
      const std::int64_t first = i * kRows;
      rows_to_float(matrix(p_.dtype, s.weight, first), std::min(kRows, s.columns - first), p_.d,
                    one.weight.data() + first * p_.d, p_.d);
    });
  }

  static ConstRows matrix(DType dtype, const MatrixTensor& from, std::int64_t row) {
    return {dtype, element_at(dtype, from.data, row * from.row_stride), from.row_stride};
  }

  /// Loads x and computes dz of a band.
  void load(std::int64_t row, std::int64_t rows) {
    std::vector<Scratch> scratch(threads_);
    for (Segment& one : segments_) {
      one.head_sums.assign(pieces(rows, kRows) * std::ssize(one.d_head_norm_weight), Real{0});
    }
    parallel_for(pieces(rows, kRows), threads_, Schedule::kStatic, [&](std::int64_t i, int thread) {
      const std::int64_t first = i * kRows, count = std::min(kRows, rows - first);
      rows_to_float(matrix(p_.dtype, p_.x, row + first), count, p_.d, x_.data() + first * p_.d,
                    p_.d);
      for (Segment& one : segments_) {
        if (one.has_gradient()) differentiate(one, row + first, first, count, scratch[thread]);
      }
    });
  }

  struct Scratch {
    std::vector<Real> kept, inverse_norm, cos, sin;
  };

  /// Computes `count` rows of dz at row `to` of the band, and zeros behind them.
  void differentiate(Segment& one, std::int64_t row, std::int64_t to, std::int64_t count,
                     Scratch& scratch) const {
    const ProjectionBackwardSegment& s = *one.p;
    const std::int64_t columns = s.columns, elements = count * columns;
    Real* const dz = one.dz.data() + to * columns;
    rows_to_float(matrix(s.out_dtype, s.d_out, row), count, columns, dz, columns);
    std::fill(dz + elements, dz + kRows * columns, Real{0});
    if (s.kept == ProjectionKept::kNothing || elements == 0) return;
    if (s.kept == ProjectionKept::kHeads) return differentiate_finish(one, row, to, count, scratch);
    const bool normalized = s.kept == ProjectionKept::kNormalized;
    scratch.kept.resize(std::max<std::size_t>(scratch.kept.size(), elements));
    rows_to_float(matrix(s.out_dtype, normalized ? s.out : s.slope, row), count, columns,
                  scratch.kept.data(), columns);
    if (!normalized) return multiply_by_slope(elements, scratch.kept.data(), dz);
    const std::int64_t heads = columns / s.head_width;
    scratch.inverse_norm.resize(std::max<std::size_t>(scratch.inverse_norm.size(), count * heads));
    rows_to_float(matrix(kRealType<Real>, s.inverse_norm, row), count, heads,
                  scratch.inverse_norm.data(), heads);
    differentiate_heads(count * heads, s.head_width, scratch.kept.data(),
                        scratch.inverse_norm.data(), dz);
  }

  /// The same of heads that were normalised or rotated, from what the rows' dz holds: d_out.
  void differentiate_finish(Segment& one, std::int64_t row, std::int64_t to, std::int64_t count,
                            Scratch& scratch) const {
    const ProjectionBackwardSegment& s = *one.p;
    const std::int64_t columns = s.columns, width = s.head_width, heads = columns / width;
    Real* const dz = one.dz.data() + to * columns;
    if (s.heads.rotates) {
      scratch.cos.resize(kRows * p_.rope.width / 2);
      scratch.sin.resize(kRows * p_.rope.width / 2);
      load_rope(p_.rope, row, count, scratch.cos.data(), scratch.sin.data());
      rotate_heads(p_.rope, count, heads, width, scratch.cos.data(), scratch.sin.data(), true, dz);
    }
    if (!s.heads.normalizes()) return;
    scratch.kept.resize(std::max<std::size_t>(scratch.kept.size(), count * columns));
    rows_to_float(matrix(p_.dtype, s.heads.pre_norm, row), count, columns, scratch.kept.data(),
                  columns);
    scratch.inverse_norm.resize(std::max<std::size_t>(scratch.inverse_norm.size(), count * heads));
    rows_to_float(matrix(kRealType<Real>, s.heads.rstd, row), count, heads,
                  scratch.inverse_norm.data(), heads);
    const bool wanted = !one.d_head_norm_weight.empty();
    differentiate_rms_heads(count * heads, width, scratch.kept.data(), scratch.inverse_norm.data(),
                            one.head_norm_weight.data(), dz,
                            wanted ? one.head_sums.data() + to / kRows * width : nullptr);
  }

  void write_dx(std::int64_t row, std::int64_t rows) const {
    const std::int64_t across = pieces(p_.d, kBlock);
    std::vector<std::vector<Real>> sums(threads_, std::vector<Real>(kRows * kBlock));
    parallel_for(
        pieces(rows, kRows) * across, threads_, Schedule::kStatic, [&](std::int64_t i, int thread) {
          const std::int64_t first = i / across * kRows, column = i % across * kBlock;
          const std::int64_t count = std::min(kRows, rows - first);
          const std::int64_t columns = std::min(kBlock, p_.d - column);
          std::vector<Real>& sum = sums[thread];
          std::fill(sum.begin(), sum.end(), Real{0});
          for (const Segment& one : segments_) {
            if (!one.has_gradient() || one.p->columns == 0) continue;
            const bool converted = !one.weight.empty();
            const void* weight = converted ? one.weight.data() : one.p->weight.data;
            matmul(provider_, {.M = matmul_rows(provider_, count, kRows),
                               .N = columns,
                               .K = one.p->columns,
                               .dtype = kRealType<Real>,
                               .a = {one.dz.data() + first * one.p->columns, one.p->columns},
                               .b = {static_cast<const Real*>(weight) + column,
                                     converted ? p_.d : one.p->weight.row_stride},
                               .c = sum.data(),
                               .c_stride = columns,
                               .accumulate = true});
          }
          const std::int64_t at = (row + first) * p_.dx.row_stride + column;
          rows_from_float(sum.data(), columns, count, columns, Real{1},
                          {p_.dtype, element_at(p_.dtype, p_.dx.data, at), p_.dx.row_stride});
        });
  }

  /// Adds what a band gives to the sums of a segment.
  void add_up(Segment& one, std::int64_t rows) const {
    if (!one.has_gradient() || one.p->columns == 0) return;
    const std::int64_t columns = one.p->columns;
    if (!one.d_head_norm_weight.empty()) {
      add_rows(pieces(rows, kRows), one.p->head_width, one.head_sums.data(),
               one.d_head_norm_weight.data());
    }
    if (!one.d_bias.empty()) {
      std::vector<Real> sum(columns);
      add_rows(rows, columns, one.dz.data(), sum.data());
      add_rows(1, columns, sum.data(), one.d_bias.data());
    }
    if (one.d_weight.empty()) return;
    const std::int64_t across = pieces(p_.d, kBlock);
    parallel_for(pieces(columns, kBlock) * across, threads_, Schedule::kStatic,
                 [&](std::int64_t i, int) {
                   const std::int64_t first = i / across * kBlock, column = i % across * kBlock;
                   matmul(provider_, {.M = std::min(kBlock, columns - first),
                                      .N = std::min(kBlock, p_.d - column),
                                      .K = rows,
                                      .dtype = kRealType<Real>,
                                      .a = {one.dz.data() + first, columns, true},
                                      .b = {x_.data() + column, p_.d},
                                      .c = one.d_weight.data() + first * p_.d + column,
                                      .c_stride = p_.d,
                                      .accumulate = true});
                 });
  }

  void write_sums(const Segment& one) const {
    const ProjectionBackwardSegment& s = *one.p;
    if (s.d_bias) write(one.d_bias, 1, s.columns, {s.d_bias_dtype, s.d_bias, 0});
    if (s.d_head_norm_weight) {
      write(one.d_head_norm_weight, 1, s.head_width,
            {s.d_head_norm_weight_dtype, s.d_head_norm_weight, 0});
    }
    if (s.d_weight.data) {
      write(one.d_weight, s.columns, p_.d,
            {s.d_weight_dtype, s.d_weight.data, s.d_weight.row_stride});
    }
  }

  void write(const std::vector<Real>& sums, std::int64_t rows, std::int64_t columns,
             const Rows& to) const {
    parallel_for(rows, threads_, Schedule::kStatic, [&](std::int64_t row, int) {
      const Real* sum = sums.data() + row * columns;
      void* const at = element_at(to.dtype, to.data, row * to.stride);
      std::vector<Real> total;
      if (p_.accumulate) {
        total.resize(columns);
        rows_to_float({to.dtype, at, 0}, 1, columns, total.data(), 0);
        add_rows(1, columns, sum, total.data());
        sum = total.data();
      }
      rows_from_float(sum, 0, 1, columns, Real{1}, {to.dtype, at, 0});
    });
  }

  const ProjectionBackwardProblem& p_;
  MatmulProvider provider_;
  int threads_;
  std::vector<Segment> segments_;
  std::vector<Real> x_;  // rows of a band
};

}  // namespace

void projection_backward(const ProjectionBackwardProblem& problem, const CallOptions& options) {
  isa();  // throws before anything is written
  const MatmulProvider provider = matmul_provider(options);
  run_with_real(problem.dtype, [&]<typename Real>() { Backward<Real>(problem, provider).run(); });
}

}  // namespace tandem::cpu
