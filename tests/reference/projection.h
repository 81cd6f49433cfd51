// The fp64 definition of projection and its gradients, as plain as the formula. Trusted as that is:
// tests/cpp/test_projection_definition.cpp.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "reference/element.h"
#include "tandem/ops/projection.h"
#include "tandem/tensor.h"

namespace tandem::reference {

/// Columns [first, first + count) of a segment, whole heads of l2_normalize, with their weights as
/// fp64.
struct ProjectedColumns {
  const ProjectionSegment* segment;
  std::int64_t first, count;
  std::vector<std::vector<double>> weight;  // [count][d]
  std::vector<double> bias;                 // [count], 0 where there is none

  ProjectedColumns(const ProjectionSegment& segment, std::int64_t first, std::int64_t count)
      : segment(&segment), first(first), count(count), bias(count) {
    for (std::int64_t j = 0; j < count; ++j) {
      weight.push_back(read_row(segment.weight, first + j, 0, segment.weight.shape[1]));
      if (segment.bias) bias[j] = element(segment.bias->dtype, segment.bias->data, first + j);
    }
  }
};

/// What the columns are for one row of x.
struct ProjectedRow {
  std::vector<double> out, slope;    // [count]
  std::vector<double> inverse_norm;  // of each head
};

inline ProjectedRow project_row(const ProjectedColumns& columns, const std::vector<double>& x) {
  const ProjectionSegment& s = *columns.segment;
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  ProjectedRow row;
  for (std::int64_t j = 0; j < columns.count; ++j) {
    double z = columns.bias[j];
    for (std::size_t i = 0; i < x.size(); ++i) z += x[i] * columns.weight[j][i];
    const double sigmoid = 1 / (1 + std::exp(-z)), other = 1 / (1 + std::exp(z));
    const double divisor = s.divisor.value_or(16);
    double out = z, slope = 1;
    switch (s.activation) {
      case Activation::kSilu:
        out = z * sigmoid;
        slope = sigmoid + z * sigmoid * other;
        break;
      case Activation::kSigmoid:
        out = sigmoid;
        slope = sigmoid * other;
        break;
      case Activation::kLogSigmoid:
        out = -std::log1p(std::exp(-z)) / divisor;
        slope = other / divisor;
        break;
      case Activation::kSoftplus: {
        const double y = std::log1p(std::exp(z));
        out = std::min(std::max(y, s.min.value_or(-kInfinity)), s.max.value_or(kInfinity));
        slope = out == y ? sigmoid : 0;
        break;
      }
      default: break;
    }
    row.out.push_back(out);
    row.slope.push_back(slope);
  }
  if (s.activation != Activation::kL2Normalize) return row;
  const std::int64_t width = s.head_width.value();
  for (std::int64_t head = 0; head < columns.count; head += width) {
    double sum = 1e-6;
    for (std::int64_t j = head; j < head + width; ++j) sum += row.out[j] * row.out[j];
    row.inverse_norm.push_back(1 / std::sqrt(sum));
    for (std::int64_t j = head; j < head + width; ++j) row.out[j] /= std::sqrt(sum);
  }
  return row;
}

/// The gradient by z, from that by out. dx is the sum of dz W, d_weight that of dz^T x, d_bias that
/// of dz.
inline std::vector<double> differentiate_row(const ProjectedColumns& columns,
                                             const ProjectedRow& row,
                                             const std::vector<double>& d_out) {
  std::vector<double> dz(d_out);
  if (columns.segment->activation != Activation::kL2Normalize) {
    for (std::size_t j = 0; j < dz.size(); ++j) dz[j] *= row.slope[j];
    return dz;
  }
  const std::size_t width = columns.segment->head_width.value();
  for (std::size_t j = 0; j < dz.size(); ++j) {
    const std::size_t head = j / width;
    double along = 0;
    for (std::size_t k = head * width; k < (head + 1) * width; ++k) along += d_out[k] * row.out[k];
    dz[j] = row.inverse_norm[head] * (d_out[j] - row.out[j] * along);
  }
  return dz;
}

}  // namespace tandem::reference
