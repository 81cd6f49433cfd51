#include "cli/ops/segments_expect.h"

#include <algorithm>
#include <utility>

#include "cli/ops/projection.h"

namespace tandem::tools {

using reference::ProjectedColumns;
using reference::read_row;

double limit_of(DType dtype, DType operands, bool gradient) {
  const DType coarse = gradient ? operands : dtype;
  switch (coarse) {
    case DType::kBFloat16: return gradient ? 4e-3 : 2e-3;
    case DType::kFloat16: return gradient ? 6e-4 : 2.5e-4;
    case DType::kFloat64: return 1e-13;
    default: return 1e-5;
  }
}

ExpectedOutputs::ExpectedOutputs(const std::vector<ProjectionSegment>& segments, std::int64_t M,
                                 const RowReader& read, bool sampled, const RowFinish& finish)
    : rows_(some_of(M, sampled ? kMostRows : M)) {
  for (std::size_t number = 0; number < segments.size(); ++number) {
    const ProjectionSegment& segment = segments[number];
    const ProjectedColumns columns(segment, 0, segment.weight.shape[0]);
    std::vector<reference::ProjectedRow>& defined = defined_.emplace_back(rows_.size());
#pragma omp parallel for schedule(dynamic)
    for (std::size_t i = 0; i < rows_.size(); ++i) {
      defined[i] = project_row(columns, read(rows_[i]));
      if (finish) finish(number, rows_[i], defined[i]);
    }
  }
}

std::vector<double> sum_before(const std::optional<TensorView>& sum, bool accumulate,
                               std::int64_t row, std::int64_t first, std::int64_t count) {
  if (!accumulate || !sum) return std::vector<double>(count);
  if (sum->shape.rank() == 2) return read_row(*sum, row, first, count);
  const std::vector<double> all = reference::read_vector(*sum);
  return {all.begin() + first, all.begin() + first + count};
}

ExpectedGradients::ExpectedGradients(std::vector<ProjectionSegment> segments,
                                     std::vector<ProjectionSegmentGradient> gradients,
                                     std::int64_t M, const RowReader& read, bool accumulate,
                                     bool sampled, RowGradient differentiate)
    : segments_(std::move(segments)),
      gradients_(std::move(gradients)),
      M_(M),
      read_(read),
      differentiate_(std::move(differentiate)) {
  rows_ = some_of(M, sampled ? kMostRows : M);
  by_rows_.assign(rows_.size(), std::vector<double>(segments_.front().weight.shape[1]));
  for (std::size_t i = 0; i < gradients_.size(); ++i) {
    add_to_rows(i);
    sums_.push_back(define_sums(i, accumulate, sampled));
  }
}

void ExpectedGradients::compare_sums(const TensorSet& set, const Buffers& after, double limit,
                                     std::vector<OutputError>& errors) const {
  for (std::size_t i = 0; i < sums_.size(); ++i) {
    const Sums& sums = sums_[i];
    RowComparison d_weight(set, after, segment_name("d_weight", i));
    for (std::size_t j = 0; j < sums.chosen.size(); ++j) {
      d_weight.row(sums.chosen[j], sums.d_weight[j]);
    }
    errors.push_back(d_weight.error(limit));
    if (!set.find(segment_name("d_bias", i))) continue;
    RowComparison d_bias(set, after, segment_name("d_bias", i));
    d_bias.row(0, sums.d_bias, sums.columns.first);
    errors.push_back(d_bias.error(limit));
  }
}

/// dz of columns at a row; the row of x is given.
std::vector<double> ExpectedGradients::dz(std::size_t segment, const ProjectedColumns& columns,
                                          std::int64_t row, const std::vector<double>& x) const {
  const std::vector<double> d_out =
      read_row(*gradients_[segment].d_out, row, columns.first, columns.count);
  const reference::ProjectedRow products = project_row(columns, x);
  if (differentiate_) return differentiate_(segment, row, products, d_out);
  return differentiate_row(columns, products, d_out);
}

void ExpectedGradients::add_to_rows(std::size_t i) {
  if (!gradients_[i].d_out) return;
  const ProjectedColumns columns(segments_[i], 0, gradients_[i].weight.shape[0]);
#pragma omp parallel for schedule(dynamic)
  for (std::size_t row = 0; row < rows_.size(); ++row) {
    const std::vector<double> d = dz(i, columns, rows_[row], read_(rows_[row]));
    for (std::size_t j = 0; j < d.size(); ++j) {
      for (std::size_t k = 0; k < by_rows_[row].size(); ++k) {
        by_rows_[row][k] += d[j] * columns.weight[j][k];
      }
    }
  }
}

/// Of all columns or, with `sampled`, of some of the last head.
ExpectedGradients::Sums ExpectedGradients::define_sums(std::size_t i, bool accumulate,
                                                       bool sampled) const {
  const ProjectionSegmentGradient& gradient = gradients_[i];
  const std::int64_t all = gradient.weight.shape[0], d = gradient.weight.shape[1];
  const std::int64_t width = segments_[i].head_width.value_or(16);
  const std::int64_t count = sampled ? std::min(all, width) : all;
  Sums sums{{segments_[i], all - count, count}, {}, {}, {}};
  for (const std::int64_t j : some_of(count, sampled ? 4 : count)) {
    const std::int64_t column = sums.columns.first + j;
    sums.chosen.push_back(column);
    sums.d_weight.push_back(sum_before(gradient.d_weight, accumulate, column, 0, d));
  }
  sums.d_bias = sum_before(gradient.d_bias, accumulate, 0, sums.columns.first, count);
  if (!gradient.d_out) return sums;
  // dz of a batch of rows in parallel, then the sums, each in the order of rows.
  constexpr std::int64_t kBatch = 256;
  for (std::int64_t begin = 0; begin < M_; begin += kBatch) {
    const std::int64_t rows = std::min(kBatch, M_ - begin);
    std::vector<std::vector<double>> x(rows), dz_of(rows);
#pragma omp parallel for schedule(dynamic)
    for (std::int64_t row = 0; row < rows; ++row) {
      x[row] = read_(begin + row);
      dz_of[row] = dz(i, sums.columns, begin + row, x[row]);
    }
#pragma omp parallel for schedule(static)
    for (std::size_t j = 0; j < sums.chosen.size(); ++j) {
      for (std::int64_t row = 0; row < rows; ++row) {
        const double factor = dz_of[row][sums.chosen[j] - sums.columns.first];
        for (std::size_t k = 0; k < x[row].size(); ++k) sums.d_weight[j][k] += factor * x[row][k];
      }
    }
    for (std::int64_t row = 0; row < rows; ++row) {
      for (std::int64_t j = 0; j < count; ++j) sums.d_bias[j] += dz_of[row][j];
    }
  }
  return sums;
}

}  // namespace tandem::tools
