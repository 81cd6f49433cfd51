// rms_norm_gemm's outputs and gradients against the fp64 definition. Gradients are those of the
// whole forward, so that what it keeps for them is judged, too.
#include <cstdint>
#include <utility>
#include <vector>

#include "cli/calls/arguments.h"
#include "cli/ops/projection.h"
#include "cli/ops/rms_norm_gemm.h"
#include "cli/ops/segments_expect.h"
#include "ops/rms_norm_gemm.h"
#include "reference/rms_norm_gemm.h"

namespace tandem::tools {
namespace {

using reference::NormedRows;

/// A set's forward call: its inputs and numbers, outputs or none.
RmsNormGemmForwardArgs forward_of(const TensorSet& set) {
  return host_arguments<RmsNormGemmForwardArgs>(rms_norm_gemm_forward_signature(), set);
}

std::vector<ProjectionSegment> products_of(const RmsNormGemmForwardArgs& args) {
  std::vector<ProjectionSegment> products;
  for (const RmsNormGemmSegment& segment : args.segments)
    products.push_back(reference::product_of(segment));
  return products;
}

RowReader reader(const NormedRows& rows) {
  return [&rows](std::int64_t row) { return rows.row(row); };
}

/// Limit on the error of an output, whatever its dtype: n is rounded to the operands', too.
double output_limit(DType operands) {
  switch (operands) {
    case DType::kBFloat16: return 3.2e-3;
    case DType::kFloat16: return 4e-4;
    default: return limit_of(operands, operands, false);
  }
}

class ForwardExpectation : public Expectation {
 public:
  ForwardExpectation(const TensorSet& set, bool sampled)
      : args_(forward_of(set)),
        rows_(args_),
        expected_(products_of(args_), args_.x.shape[0], reader(rows_), sampled) {
    make_problem(args_);
  }

  std::vector<OutputError> compare(const TensorSet& set, const Buffers& after) const override {
    std::vector<OutputError> errors;
    for (std::size_t i = 0; i < expected_.count(); ++i) {
      RowComparison out(set, after, segment_name("out", i));
      for (std::size_t row = 0; row < expected_.rows().size(); ++row) {
        out.row(expected_.rows()[row], expected_.segment(i)[row].out);
      }
      errors.push_back(out.error(output_limit(args_.x.dtype)));
    }
    if (args_.kept_rstd) {
      RowComparison kept(set, after, "kept_rstd");
      for (std::size_t row = 0; row < rows_.rstd.size(); ++row) {
        kept.row(0, {rows_.rstd[row]}, static_cast<std::int64_t>(row));
      }
      errors.push_back(kept.error(limit_of(kept.dtype(), kept.dtype(), false)));
    }
    return errors;
  }

 private:
  RmsNormGemmForwardArgs args_;
  NormedRows rows_;
  ExpectedOutputs expected_;
};

class BackwardExpectation : public Expectation {
 public:
  BackwardExpectation(const TensorSet& set, bool sampled)
      : args_(host_arguments<RmsNormGemmBackwardArgs>(rms_norm_gemm_backward_signature(), set)),
        forward_(forward_of(set)),
        rows_(forward_),
        products_(products_of(forward_), gradients_of(args_), args_.x.shape[0], reader(rows_),
                  args_.accumulate, sampled) {
    make_problem(args_);
    const std::int64_t d = args_.x.shape[1];
    define_norm_weight(some_of(d, sampled ? 4 : d));
  }

  std::vector<OutputError> compare(const TensorSet& set, const Buffers& after) const override {
    const double limit = limit_of(args_.x.dtype, args_.x.dtype, true);
    RowComparison dx(set, after, "dx");
    for (std::size_t i = 0; i < products_.rows().size(); ++i) {
      const std::int64_t row = products_.rows()[i];
      dx.row(row, rows_.gradient(row, products_.by_rows()[i]).dx);
    }
    std::vector<OutputError> errors = {dx.error(limit)};
    products_.compare_sums(set, after, limit, errors);
    // why one row of all: a sum that cancels is measured by the others.
    RowComparison d_norm_weight(set, after, "d_norm_weight");
    d_norm_weight.elements(chosen_, d_norm_weight_);
    errors.push_back(d_norm_weight.error(limit));
    return errors;
  }

 private:
  static std::vector<ProjectionSegmentGradient> gradients_of(const RmsNormGemmBackwardArgs& args) {
    std::vector<ProjectionSegmentGradient> gradients;
    for (const RmsNormGemmSegmentGradient& segment : args.segments) {
      gradients.push_back({.weight = segment.weight,
                           .bias = segment.bias,
                           .d_out = segment.d_out,
                           .d_weight = segment.d_weight,
                           .d_bias = segment.d_bias});
    }
    return gradients;
  }

  /// Defines the gradient by the norm's weight at some of its elements: of dn only these columns.
  void define_norm_weight(std::vector<std::int64_t> chosen) {
    chosen_ = std::move(chosen);
    const std::int64_t M = args_.x.shape[0];
    std::vector<std::vector<double>> rows(M, std::vector<double>(chosen_.size()));
    for (const RmsNormGemmSegmentGradient& segment : args_.segments) {
      if (!segment.d_out) continue;
      const std::int64_t columns = segment.weight.shape[0];
      std::vector<std::vector<double>> weight(columns);  // [columns][chosen]
      for (std::int64_t j = 0; j < columns; ++j) {
        for (const std::int64_t k : chosen_) {
          weight[j].push_back(reference::read_row(segment.weight, j, k, 1).front());
        }
      }
#pragma omp parallel for schedule(static)
      for (std::int64_t row = 0; row < M; ++row) {
        const std::vector<double> d_out = reference::read_row(*segment.d_out, row, 0, columns);
        for (std::int64_t j = 0; j < columns; ++j) {
          for (std::size_t k = 0; k < chosen_.size(); ++k) {
            rows[row][k] += d_out[j] * weight[j][k];
          }
        }
      }
    }
    for (std::size_t k = 0; k < chosen_.size(); ++k) {
      double sum = sum_before(args_.d_norm_weight, args_.accumulate, 0, chosen_[k], 1).front();
      for (std::int64_t row = 0; row < M; ++row) {
        const double x = reference::read_row(args_.x, row, chosen_[k], 1).front();
        sum += rows[row][k] * x * rows_.rstd[row];
      }
      d_norm_weight_.push_back(sum);
    }
  }

  RmsNormGemmBackwardArgs args_;
  RmsNormGemmForwardArgs forward_;
  NormedRows rows_;
  ExpectedGradients products_;
  std::vector<std::int64_t> chosen_;
  std::vector<double> d_norm_weight_;  // [chosen]
};

}  // namespace

std::unique_ptr<Expectation> expect_rms_norm_gemm(const TensorSet& set, bool sampled) {
  return std::make_unique<ForwardExpectation>(set, sampled);
}

std::unique_ptr<Expectation> expect_rms_norm_gemm_backward(const TensorSet& set, bool sampled) {
  return std::make_unique<BackwardExpectation>(set, sampled);
}

}  // namespace tandem::tools
