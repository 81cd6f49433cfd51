// rms_norm_gemm's outputs and gradients against the fp64 definition. Gradients are those of the
// whole forward, so that what it keeps for them is judged, too.
#include <cstddef>
#include <cstdint>
#include <optional>
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

/// Turns a row's products into its outputs; heads' rstd goes where projection has inverse norms,
/// and products to `slope`.
RowFinish finish_of(const RmsNormGemmForwardArgs& args) {
  return [&args](std::size_t i, std::int64_t row, reference::ProjectedRow& products) {
    if (!args.segments[i].head_width) return;
    const reference::HeadsOfRow heads = reference::heads_of_row(args, i, row);
    products.slope = products.out;
    products.inverse_norm = heads.rstd(products.out);
    products.out = heads.out(products.slope);
  };
}

RowGradient gradient_of(const RmsNormGemmForwardArgs& args) {
  return [&args](std::size_t i, std::int64_t row, const reference::ProjectedRow& products,
                 const std::vector<double>& d_out) {
    if (!args.segments[i].head_width) return d_out;
    return reference::heads_of_row(args, i, row).dz(products.out, d_out);
  };
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
        expected_(products_of(args_), args_.x.shape[0], reader(rows_), sampled, finish_of(args_)) {
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
      if (args_.segments[i].pre_norm) compare_kept(set, after, i, errors);
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
  void compare_kept(const TensorSet& set, const Buffers& after, std::size_t segment,
                    std::vector<OutputError>& errors) const {
    RowComparison z(set, after, segment_name("pre_norm", segment));
    RowComparison rstd(set, after, segment_name("head_rstd", segment));
    for (std::size_t row = 0; row < expected_.rows().size(); ++row) {
      const reference::ProjectedRow& expected = expected_.segment(segment)[row];
      z.row(expected_.rows()[row], expected.slope);
      rstd.row(expected_.rows()[row], expected.inverse_norm);
    }
    errors.push_back(z.error(output_limit(args_.x.dtype)));
    errors.push_back(rstd.error(output_limit(args_.x.dtype)));
  }

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
                  args_.accumulate, sampled, gradient_of(forward_)) {
    make_problem(args_);
    const std::int64_t d = args_.x.shape[1];
    chosen_ = some_of(d, sampled ? kChosen : d);
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
    d_norm_weight.elements(chosen_, define_norm_weight(set, after));
    errors.push_back(d_norm_weight.error(limit));
    for (std::size_t i = 0; i < args_.segments.size(); ++i) {
      if (args_.segments[i].d_head_norm_weight) compare_head_norm(set, after, i, limit, errors);
    }
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

  /// What a segment's forward kept, and the gradient by its product from that: what was kept is
  /// judged by dx, and all products of a large case would take too long.
  class Kept {
   public:
    Kept(const BackwardExpectation& call, const TensorSet& set, const Buffers& after,
         std::size_t segment)
        : call_(call), segment_(segment) {
      if (!one().head_norm_weight) return;
      z_ = find(set, after, "pre_norm");
      rstd_ = find(set, after, "head_rstd");
    }

    std::vector<double> z(std::int64_t row) const {
      return z_ ? reference::read_row(*z_, row, 0, z_->shape[1]) : std::vector<double>();
    }
    std::vector<double> rstd(std::int64_t row) const {
      return rstd_ ? reference::read_row(*rstd_, row, 0, rstd_->shape[1]) : std::vector<double>();
    }
    std::vector<double> dy(std::int64_t row) const {
      return one().head_width ? heads(row).dy(d_out(row)) : d_out(row);
    }
    std::vector<double> dz(std::int64_t row) const {
      return one().head_width ? heads(row).dz(z(row), rstd(row), d_out(row)) : d_out(row);
    }

   private:
    const RmsNormGemmSegmentGradient& one() const { return call_.args_.segments[segment_]; }
    reference::HeadsOfRow heads(std::int64_t row) const {
      return reference::heads_of_row(call_.forward_, segment_, row);
    }
    std::vector<double> d_out(std::int64_t row) const {
      return reference::read_row(*one().d_out, row, 0, one().weight.shape[0]);
    }
    std::optional<TensorView> find(const TensorSet& set, const Buffers& after,
                                   const char* stem) const {
      const NamedTensor& tensor = set.get(segment_name(stem, segment_));
      const Buffers& buffers = tensor.output ? after : set.buffers;
      // Read alone.
      return view(tensor, const_cast<std::byte*>(buffers[tensor.buffer].data()), Device::cpu());
    }

    const BackwardExpectation& call_;
    std::size_t segment_;
    std::optional<TensorView> z_, rstd_;
  };

  void compare_head_norm(const TensorSet& set, const Buffers& after, std::size_t segment,
                         double limit, std::vector<OutputError>& errors) const {
    const RmsNormGemmSegmentGradient& one = args_.segments[segment];
    const std::int64_t width = *one.head_width, columns = one.weight.shape[0];
    const Kept kept(*this, set, after, segment);
    std::vector<double> sum = sum_before(one.d_head_norm_weight, args_.accumulate, 0, 0, width);
    for (std::int64_t row = 0; one.d_out && row < args_.x.shape[0]; ++row) {
      const std::vector<double> dy = kept.dy(row), z = kept.z(row), rstd = kept.rstd(row);
      for (std::int64_t j = 0; j < columns; ++j) sum[j % width] += dy[j] * z[j] * rstd[j / width];
    }
    RowComparison got(set, after, segment_name("d_head_norm_weight", segment));
    got.row(0, sum);
    errors.push_back(got.error(limit));
  }

  /// The gradient by the norm's weight at the chosen elements: of dn only these columns.
  std::vector<double> define_norm_weight(const TensorSet& set, const Buffers& after) const {
    const std::int64_t M = args_.x.shape[0];
    std::vector<std::vector<double>> rows(M, std::vector<double>(chosen_.size()));
    for (std::size_t i = 0; i < args_.segments.size(); ++i) {
      const RmsNormGemmSegmentGradient& segment = args_.segments[i];
      if (!segment.d_out) continue;
      const Kept kept(*this, set, after, i);
      const std::int64_t columns = segment.weight.shape[0];
      std::vector<std::vector<double>> weight(columns);  // [columns][chosen]
      for (std::int64_t j = 0; j < columns; ++j) {
        for (const std::int64_t k : chosen_) {
          weight[j].push_back(reference::element_at(segment.weight, j, k));
        }
      }
#pragma omp parallel for schedule(static)
      for (std::int64_t row = 0; row < M; ++row) {
        const std::vector<double> dz = kept.dz(row);
        for (std::int64_t j = 0; j < columns; ++j) {
          for (std::size_t k = 0; k < chosen_.size(); ++k) rows[row][k] += dz[j] * weight[j][k];
        }
      }
    }
    std::vector<double> sums;
    for (std::size_t k = 0; k < chosen_.size(); ++k) {
      double sum = sum_before(args_.d_norm_weight, args_.accumulate, 0, chosen_[k], 1).front();
      for (std::int64_t row = 0; row < M; ++row) {
        const double x = reference::element_at(args_.x, row, chosen_[k]);
        sum += rows[row][k] * x * rows_.rstd[row];
      }
      sums.push_back(sum);
    }
    return sums;
  }

  /// Of d_norm_weight, of a large case. why not fewer: the error is measured by their mean square,
  /// which of a few is small by chance.
  static constexpr std::int64_t kChosen = 16;

  RmsNormGemmBackwardArgs args_;
  RmsNormGemmForwardArgs forward_;
  NormedRows rows_;
  ExpectedGradients products_;
  std::vector<std::int64_t> chosen_;  // elements of d_norm_weight
};

}  // namespace

std::unique_ptr<Expectation> expect_rms_norm_gemm(const TensorSet& set, bool sampled) {
  return std::make_unique<ForwardExpectation>(set, sampled);
}

std::unique_ptr<Expectation> expect_rms_norm_gemm_backward(const TensorSet& set, bool sampled) {
  return std::make_unique<BackwardExpectation>(set, sampled);
}

}  // namespace tandem::tools
