// What the fp64 definition says of segments' products, for ops that have them: rows of what has
// rows, columns of what is summed over them.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "cli/calls/operation.h"
#include "cli/ops/product.h"
#include "cli/tensors/tensors.h"
#include "reference/projection.h"
#include "tandem/ops/projection.h"

namespace tandem::tools {

/// Limit on the relative error of a result beside operands of a dtype: its own rounding, and for
/// gradients that of what the forward kept and of the gradients where products take 16 bits.
double limit_of(DType dtype, DType operands, bool gradient);

/// A row of what the weights are multiplied with.
using RowReader = std::function<std::vector<double>(std::int64_t row)>;

/// What an op does with a segment's products at a row: makes its outputs of them, or their gradient
/// of that by the outputs. Null: what projection does.
using RowFinish =
    std::function<void(std::size_t segment, std::int64_t row, reference::ProjectedRow& products)>;
using RowGradient = std::function<std::vector<double>(std::size_t segment, std::int64_t row,
                                                      const reference::ProjectedRow& products,
                                                      const std::vector<double>& d_out)>;

/// The segments' outputs, at all rows or some.
class ExpectedOutputs {
 public:
  ExpectedOutputs(const std::vector<ProjectionSegment>& segments, std::int64_t M,
                  const RowReader& read, bool sampled, const RowFinish& finish = nullptr);

  const std::vector<std::int64_t>& rows() const { return rows_; }
  /// Of a segment, each of rows().
  const std::vector<reference::ProjectedRow>& segment(std::size_t i) const { return defined_[i]; }
  std::size_t count() const { return defined_.size(); }

 private:
  std::vector<std::int64_t> rows_;
  std::vector<std::vector<reference::ProjectedRow>> defined_;  // [segments][rows]
};

/// The gradients by what the weights are multiplied with, at all rows or some, and by weights and
/// biases, at all columns or some.
class ExpectedGradients {
 public:
  /// `segments` as the forward has them, `gradients` as the backward.
  ExpectedGradients(std::vector<ProjectionSegment> segments,
                    std::vector<ProjectionSegmentGradient> gradients, std::int64_t M,
                    const RowReader& read, bool accumulate, bool sampled,
                    RowGradient differentiate = nullptr);

  const std::vector<std::int64_t>& rows() const { return rows_; }
  const std::vector<std::vector<double>>& by_rows() const { return by_rows_; }  // [rows()][d]
  /// Compares the weights' and biases'.
  void compare_sums(const TensorSet& set, const Buffers& after, double limit,
                    std::vector<OutputError>& errors) const;

 private:
  /// Sums over all rows of dz, and of dz^T x, for some columns of a segment.
  struct Sums {
    reference::ProjectedColumns columns;
    std::vector<std::int64_t> chosen;           // of the columns
    std::vector<std::vector<double>> d_weight;  // [chosen][d]
    std::vector<double> d_bias;                 // [columns]
  };

  std::vector<double> dz(std::size_t segment, const reference::ProjectedColumns& columns,
                         std::int64_t row, const std::vector<double>& x) const;
  void add_to_rows(std::size_t i);
  Sums define_sums(std::size_t i, bool accumulate, bool sampled) const;

  std::vector<ProjectionSegment> segments_;
  std::vector<ProjectionSegmentGradient> gradients_;
  std::int64_t M_;
  RowReader read_;
  RowGradient differentiate_;
  std::vector<std::int64_t> rows_;
  std::vector<std::vector<double>> by_rows_;
  std::vector<Sums> sums_;  // of each segment
};

/// What a sum over rows is added to: `count` elements of it, or zeros without `accumulate`.
std::vector<double> sum_before(const std::optional<TensorView>& sum, bool accumulate,
                               std::int64_t row, std::int64_t first, std::int64_t count);

}  // namespace tandem::tools
