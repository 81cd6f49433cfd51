// projection's outputs and gradients against the fp64 definition: rows of what has rows, columns of
// what is summed over them. Gradients are those of the whole forward, so that what it keeps for
// them is judged, too.
#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "cli/calls/arguments.h"
#include "cli/ops/product.h"
#include "cli/ops/projection.h"
#include "ops/projection.h"
#include "reference/projection.h"

namespace tandem::tools {
namespace {

using reference::ProjectedColumns;
using reference::ProjectedRow;
using reference::read_row;

/// Limit on the relative error of a result: its own rounding, and for gradients that of what the
/// forward kept and of dz where products take 16 bits.
double limit_of(DType dtype, DType operands, bool gradient) {
  const DType coarse = gradient ? operands : dtype;
  switch (coarse) {
    case DType::kBFloat16: return gradient ? 4e-3 : 2e-3;
    case DType::kFloat16: return gradient ? 6e-4 : 2.5e-4;
    case DType::kFloat64: return 1e-13;
    default: return 1e-5;
  }
}

class Comparison : public RowComparison {
 public:
  using RowComparison::RowComparison;

  OutputError error(DType operands, bool gradient) const {
    return RowComparison::error(limit_of(dtype(), operands, gradient));
  }
};

/// A set's forward call: its inputs and numbers, outputs or none.
ProjectionForwardArgs forward_of(const TensorSet& set) {
  return host_arguments<ProjectionForwardArgs>(projection_forward_signature(), set);
}

class ForwardExpectation : public Expectation {
 public:
  ForwardExpectation(const TensorSet& set, bool sampled)
      : args_(forward_of(set)),
        rows_(some_of(args_.x.shape[0], sampled ? kMostRows : args_.x.shape[0])) {
    make_problem(args_);
    for (const ProjectionSegment& segment : args_.segments) {
      const ProjectedColumns columns(segment, 0, segment.weight.shape[0]);
      std::vector<ProjectedRow>& defined = defined_.emplace_back(rows_.size());
#pragma omp parallel for schedule(dynamic)
      for (std::size_t i = 0; i < rows_.size(); ++i) {
        defined[i] = project_row(columns, read_row(args_.x, rows_[i], 0, args_.x.shape[1]));
      }
    }
  }

  std::vector<OutputError> compare(const TensorSet& set, const Buffers& after) const override {
    std::vector<OutputError> errors;
    for (std::size_t i = 0; i < defined_.size(); ++i) {
      const auto add = [&](const char* stem, std::vector<double> ProjectedRow::*values) {
        const NamedTensor* tensor = set.find(segment_name(stem, i));
        if (tensor == nullptr || !tensor->output) return;
        Comparison comparison(set, after, tensor->name);
        for (std::size_t row = 0; row < rows_.size(); ++row) {
          comparison.row(rows_[row], defined_[i][row].*values);
        }
        // Slopes close to 1 are all rounded by nearly as much as any value is.
        errors.push_back(comparison.error(tensor->dtype, values == &ProjectedRow::slope));
      };
      add("out", &ProjectedRow::out);
      add("slope", &ProjectedRow::slope);
      add("inverse_norm", &ProjectedRow::inverse_norm);
    }
    return errors;
  }

 private:
  ProjectionForwardArgs args_;
  std::vector<std::int64_t> rows_;
  std::vector<std::vector<ProjectedRow>> defined_;  // [segments][rows]
};

/// Sums over all rows of dz, and of dz^T x, for some columns of a segment.
struct ExpectedSums {
  ProjectedColumns columns;
  std::vector<std::int64_t> chosen;           // of the columns
  std::vector<std::vector<double>> d_weight;  // [chosen][d]
  std::vector<double> d_bias;                 // [chosen]
};

class BackwardExpectation : public Expectation {
 public:
  BackwardExpectation(const TensorSet& set, bool sampled)
      : args_(forward_of(set)), x_(args_.x), accumulate_(set.scalars.at("accumulate") != 0) {
    const auto backward =
        host_arguments<ProjectionBackwardArgs>(projection_backward_signature(), set);
    make_problem(backward);
    for (const ProjectionSegmentGradient& segment : backward.segments) {
      gradients_.push_back(segment);
    }
    rows_ = some_of(x_.shape[0], sampled ? kMostRows : x_.shape[0]);
    dx_.assign(rows_.size(), std::vector<double>(x_.shape[1]));
    for (std::size_t i = 0; i < gradients_.size(); ++i) {
      add_to_dx(i);
      sums_.push_back(define_sums(i, sampled));
    }
  }

  std::vector<OutputError> compare(const TensorSet& set, const Buffers& after) const override {
    std::vector<OutputError> errors;
    Comparison dx(set, after, "dx");
    for (std::size_t i = 0; i < rows_.size(); ++i) dx.row(rows_[i], dx_[i]);
    errors.push_back(dx.error(x_.dtype, true));
    for (std::size_t i = 0; i < sums_.size(); ++i) {
      const ExpectedSums& sums = sums_[i];
      Comparison d_weight(set, after, segment_name("d_weight", i));
      for (std::size_t j = 0; j < sums.chosen.size(); ++j) {
        d_weight.row(sums.chosen[j], sums.d_weight[j]);
      }
      errors.push_back(d_weight.error(x_.dtype, true));
      if (!set.find(segment_name("d_bias", i))) continue;
      Comparison d_bias(set, after, segment_name("d_bias", i));
      d_bias.row(0, sums.d_bias, sums.columns.first);
      errors.push_back(d_bias.error(x_.dtype, true));
    }
    return errors;
  }

 private:
  std::vector<double> x_row(std::int64_t row) const { return read_row(x_, row, 0, x_.shape[1]); }

  /// dz of columns at a row; the row of x is given.
  std::vector<double> dz(std::size_t segment, const ProjectedColumns& columns, std::int64_t row,
                         const std::vector<double>& x) const {
    return differentiate_row(
        columns, project_row(columns, x),
        read_row(*gradients_[segment].d_out, row, columns.first, columns.count));
  }

  void add_to_dx(std::size_t i) {
    if (!gradients_[i].d_out) return;
    const ProjectedColumns columns(args_.segments[i], 0, gradients_[i].weight.shape[0]);
#pragma omp parallel for schedule(dynamic)
    for (std::size_t row = 0; row < rows_.size(); ++row) {
      const std::vector<double> d = dz(i, columns, rows_[row], x_row(rows_[row]));
      for (std::size_t j = 0; j < d.size(); ++j) {
        for (std::size_t k = 0; k < dx_[row].size(); ++k) {
          dx_[row][k] += d[j] * columns.weight[j][k];
        }
      }
    }
  }

  /// Of all columns or, with `sampled`, of some of the last head.
  ExpectedSums define_sums(std::size_t i, bool sampled) const {
    const ProjectionSegmentGradient& gradient = gradients_[i];
    const std::int64_t all = gradient.weight.shape[0];
    const std::int64_t width = args_.segments[i].head_width.value_or(16);
    const std::int64_t count = sampled ? std::min(all, width) : all;
    ExpectedSums sums{{args_.segments[i], all - count, count}, {}, {}, {}};
    for (const std::int64_t j : some_of(count, sampled ? 4 : count)) {
      const std::int64_t column = sums.columns.first + j;
      sums.chosen.push_back(column);
      const auto old = [&](const std::optional<TensorView>& view, std::int64_t row,
                           std::int64_t first, std::int64_t columns) {
        if (!accumulate_ || !view) return std::vector<double>(columns);
        return read_row(*view, row, first, columns);
      };
      sums.d_weight.push_back(old(gradient.d_weight, column, 0, x_.shape[1]));
    }
    sums.d_bias.resize(count);
    if (accumulate_ && gradient.d_bias) {
      for (std::int64_t j = 0; j < count; ++j) {
        sums.d_bias[j] = reference::element(gradient.d_bias->dtype, gradient.d_bias->data,
                                            sums.columns.first + j);
      }
    }
    if (!gradient.d_out) return sums;
    // dz of a batch of rows in parallel, then the sums, each in the order of rows.
    constexpr std::int64_t kBatch = 256;
    for (std::int64_t begin = 0; begin < x_.shape[0]; begin += kBatch) {
      const std::int64_t rows = std::min(kBatch, x_.shape[0] - begin);
      std::vector<std::vector<double>> x(rows), d(rows);
#pragma omp parallel for schedule(dynamic)
      for (std::int64_t row = 0; row < rows; ++row) {
        x[row] = x_row(begin + row);
        d[row] = dz(i, sums.columns, begin + row, x[row]);
      }
#pragma omp parallel for schedule(static)
      for (std::size_t j = 0; j < sums.chosen.size(); ++j) {
        for (std::int64_t row = 0; row < rows; ++row) {
          const double factor = d[row][sums.chosen[j] - sums.columns.first];
          for (std::size_t k = 0; k < x[row].size(); ++k) {
            sums.d_weight[j][k] += factor * x[row][k];
          }
        }
      }
      for (std::int64_t row = 0; row < rows; ++row) {
        for (std::int64_t j = 0; j < count; ++j) sums.d_bias[j] += d[row][j];
      }
    }
    return sums;
  }

  ProjectionForwardArgs args_;
  TensorView x_;
  bool accumulate_;
  std::vector<ProjectionSegmentGradient> gradients_;
  std::vector<std::int64_t> rows_;
  std::vector<std::vector<double>> dx_;  // [rows][d]
  std::vector<ExpectedSums> sums_;       // of each segment
};

}  // namespace

std::unique_ptr<Expectation> expect_projection(const TensorSet& set, bool sampled) {
  return std::make_unique<ForwardExpectation>(set, sampled);
}

std::unique_ptr<Expectation> expect_projection_backward(const TensorSet& set, bool sampled) {
  return std::make_unique<BackwardExpectation>(set, sampled);
}

}  // namespace tandem::tools
