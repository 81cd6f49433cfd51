// gated_output's outputs and gradients against the fp64 definition: rows of what has rows, columns
// of what is summed over them. Gradients are those of the whole forward, so that what it keeps for
// them is judged, too; where a backward runs alone, those at the sum that it is given.
#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "cli/calls/arguments.h"
#include "cli/ops/gated_output.h"
#include "cli/ops/product.h"
#include "core/real.h"
#include "ops/gated_output.h"
#include "reference/gated_output.h"

namespace tandem::tools {
namespace {

using reference::gated_input_gradient;
using reference::gated_input_row;
using reference::GatedInputGradient;
using reference::GatedInputRow;
using reference::GatedOutputWeights;
using reference::output_norm_gradient;
using reference::output_norm_row;
using reference::output_product_gradient;
using reference::output_sum_row;
using reference::OutputNormRow;
using reference::read_row;
using reference::read_vector;

using Matrix = std::vector<std::vector<double>>;

/// Limit on the relative error of a result: its own rounding and those of a and the sum, and for
/// gradients those of what the forward kept, of d_residual and of d_a.
double limit_of(DType dtype, bool gradient) {
  switch (dtype) {
    case DType::kBFloat16: return gradient ? 4e-3 : 3.2e-3;
    case DType::kFloat16: return gradient ? 6e-4 : 4e-4;
    case DType::kFloat64: return 1e-13;
    default: return 1e-5;
  }
}

/// A set's forward call: its inputs and numbers, outputs or none.
GatedOutputForwardArgs forward_of(const TensorSet& set) {
  return host_arguments<GatedOutputForwardArgs>(gated_output_forward_signature(), set);
}

bool is_output(const TensorSet& set, const char* name) {
  const NamedTensor* tensor = set.find(name);
  return tensor != nullptr && tensor->output;
}

class ForwardExpectation : public Expectation {
 public:
  ForwardExpectation(const TensorSet& set, bool sampled)
      : args_(forward_of(set)),
        weights_(args_),
        rows_(some_of(args_.o.shape[0], sampled ? kMostRows : args_.o.shape[0])),
        inputs_(rows_.size()),
        sums_(rows_.size()) {
    make_problem(args_);
#pragma omp parallel for schedule(dynamic)
    for (std::size_t i = 0; i < rows_.size(); ++i) {
      inputs_[i] = gated_input_row(args_, weights_, rows_[i]);
      sums_[i] = output_sum_row(args_, weights_, inputs_[i].a, rows_[i]);
    }
  }

  std::vector<OutputError> compare(const TensorSet& set, const Buffers& after) const override {
    std::vector<OutputError> errors;
    const auto add = [&](const char* name, DType of_limit, const auto& expected) {
      if (!is_output(set, name)) return;
      RowComparison comparison(set, after, name);
      for (std::size_t i = 0; i < rows_.size(); ++i) comparison.row(rows_[i], expected(i));
      errors.push_back(comparison.error(limit_of(of_limit, false)));
    };
    const DType dtype = args_.o.dtype, real = real_dtype(dtype);
    add("out", dtype,
        [&](std::size_t i) { return output_norm_row(args_, weights_, sums_[i]).out; });
    add("sum", dtype, [&](std::size_t i) { return sums_[i]; });
    add("gated", dtype, [&](std::size_t i) { return inputs_[i].a; });
    // Nothing is rounded in front of it.
    add("group_rstd", real, [&](std::size_t i) { return inputs_[i].group_rstd; });
    add_statistics(set, after, "mean", &OutputNormRow::mean, errors);
    add_statistics(set, after, "rstd", &OutputNormRow::rstd, errors);
    return errors;
  }

 private:
  /// Of the rounded sum, where the call wrote it: they are exact then.
  void add_statistics(const TensorSet& set, const Buffers& after, const char* name,
                      double OutputNormRow::*value, std::vector<OutputError>& errors) const {
    if (!is_output(set, name)) return;
    const bool has_sum = is_output(set, "sum");
    RowComparison comparison(set, after, name);
    for (std::size_t i = 0; i < rows_.size(); ++i) {
      const std::vector<double> sum =
          has_sum ? read_row(view_after(set, after, "sum"), rows_[i], 0, std::ssize(sums_[i]))
                  : sums_[i];
      comparison.row(0, {output_norm_row(args_, weights_, sum).*value}, rows_[i]);
    }
    const DType dtype = args_.o.dtype;
    errors.push_back(comparison.error(limit_of(has_sum ? real_dtype(dtype) : dtype, false)));
  }

  GatedOutputForwardArgs args_;
  GatedOutputWeights weights_;
  std::vector<std::int64_t> rows_;
  std::vector<GatedInputRow> inputs_;  // [rows]
  Matrix sums_;                        // [rows][d]
};

/// What a row is for the gradients of weights and biases: with d_out and m, all that is summed.
struct RowOfSums {
  std::vector<double> a, d_residual, d_out, m, d_group_weight;
};

/// Sums over all rows, at some places of each.
struct Sums {
  std::vector<std::int64_t> outputs;  // the rows of d_weight, elements of d_bias and others of [d]
  std::vector<std::int64_t> groups;   // the elements of d_group_norm_weight
  Matrix d_weight;                    // [outputs][d_in]
  std::vector<double> d_bias, d_norm_weight, d_norm_bias, d_group_norm_weight;
};

class BackwardExpectation : public Expectation {
 public:
  BackwardExpectation(const TensorSet& set, bool sampled)
      : args_(forward_of(set)),
        gradients_(host_arguments<GatedOutputBackwardArgs>(gated_output_backward_signature(), set)),
        weights_(args_),
        M_(args_.o.shape[0]),
        d_in_(args_.o.shape[1]),
        d_(args_.weight.shape[0]),
        accumulate_(set.scalars.at("accumulate") != 0),
        sampled_(sampled),
        is_given_sum_(set.find("sum") != nullptr && !is_output(set, "sum")),
        rows_(some_of(M_, sampled ? kMostRows : M_)) {
    make_problem(gradients_);
    define_rows();
    if (!sampled_) sums_ = add_up([this](std::int64_t row) { return parts_[row]; });
  }

  std::vector<OutputError> compare(const TensorSet& set, const Buffers& after) const override {
    std::vector<OutputError> errors;
    const double limit = limit_of(args_.o.dtype, true);
    const auto add_rows = [&](const char* name, const Matrix& expected) {
      if (!is_output(set, name)) return;
      RowComparison comparison(set, after, name);
      for (std::size_t i = 0; i < rows_.size(); ++i) comparison.row(rows_[i], expected[i]);
      errors.push_back(comparison.error(limit));
    };
    add_rows("d_o", d_o_);
    add_rows("d_gate", d_gate_);
    add_rows("d_residual", d_residual_);
    // A baseline that keeps something else has no sum after its forward.
    const bool has_sum = args_.norm == OutputNorm::kNone || set.find("sum") != nullptr;
    if (sampled_ && !has_sum) return errors;
    const Sums sums = sampled_ ? sampled_sums(set, after) : sums_;
    RowComparison d_weight(set, after, "d_weight");
    for (std::size_t j = 0; j < sums.outputs.size(); ++j) {
      d_weight.row(sums.outputs[j], sums.d_weight[j]);
    }
    errors.push_back(d_weight.error(limit));
    const auto add = [&](const char* name, const std::vector<std::int64_t>& places,
                         const std::vector<double>& expected) {
      if (!is_output(set, name)) return;
      RowComparison comparison(set, after, name);
      comparison.elements(places, expected);
      errors.push_back(comparison.error(limit));
    };
    add("d_bias", sums.outputs, sums.d_bias);
    add("d_group_norm_weight", sums.groups, sums.d_group_norm_weight);
    add("d_norm_weight", sums.outputs, sums.d_norm_weight);
    add("d_norm_bias", sums.outputs, sums.d_norm_bias);
    return errors;
  }

 private:
  std::vector<double> gradient_row(const std::optional<TensorView>& view, std::int64_t row) const {
    return view ? read_row(*view, row, 0, d_) : std::vector<double>(d_);
  }

  /// The sum that a backward alone is given, else the definition's; without a norm no gradient
  /// depends on it.
  std::vector<double> sum_row(const std::vector<double>& a, std::int64_t row) const {
    if (args_.norm == OutputNorm::kNone) return std::vector<double>(d_);
    return is_given_sum_ ? read_row(*gradients_.sum, row, 0, d_)
                         : output_sum_row(args_, weights_, a, row);
  }

  /// The gradients of the chosen rows and, where these are all, what they add to sums.
  void define_rows() {
    const std::size_t count = rows_.size();
    d_o_.resize(count), d_gate_.resize(count), d_residual_.resize(count);
    if (!sampled_) parts_.resize(count);
#pragma omp parallel for schedule(dynamic)
    for (std::size_t i = 0; i < count; ++i) {
      const std::int64_t row = rows_[i];
      GatedInputRow input = gated_input_row(args_, weights_, row);
      OutputNormRow norm = output_norm_row(args_, weights_, sum_row(input.a, row));
      const std::vector<double> d_out = gradient_row(gradients_.d_out, row);
      d_residual_[i] =
          output_norm_gradient(args_, weights_, norm, d_out, gradient_row(gradients_.d_sum, row));
      GatedInputGradient gradient = gated_input_gradient(
          args_, weights_, input, output_product_gradient(weights_, d_residual_[i]));
      if (!sampled_) {
        parts_[i] = {std::move(input.a), d_residual_[i], d_out, std::move(norm.m),
                     std::move(gradient.d_group_weight)};
      }
      d_o_[i] = std::move(gradient.d_o);
      d_gate_[i] = std::move(gradient.d_gate);
    }
  }

  /// How many weights h has, each for every so many columns.
  std::int64_t group_weights() const {
    return args_.group_norm_weight ? args_.group_norm_weight->shape[0] : 0;
  }

  /// Adds up what the rows are, all places or a few of them.
  template <class RowOf>
  Sums add_up(const RowOf& row_of) const {
    constexpr std::int64_t kChosen = 4, kBatch = 256;
    Sums sums;
    sums.outputs = some_of(d_, sampled_ ? kChosen : d_);
    sums.groups = some_of(group_weights(), sampled_ ? kMostRows : group_weights());
    start(sums);
    // A batch of rows in parallel, then the sums, each in the order of rows.
    for (std::int64_t begin = 0; begin < M_; begin += kBatch) {
      std::vector<RowOfSums> rows(std::min(kBatch, M_ - begin));
#pragma omp parallel for schedule(dynamic)
      for (std::size_t i = 0; i < rows.size(); ++i) {
        rows[i] = row_of(begin + static_cast<std::int64_t>(i));
      }
#pragma omp parallel for schedule(static)
      for (std::size_t j = 0; j < sums.outputs.size(); ++j) {
        const std::int64_t output = sums.outputs[j];
        for (const RowOfSums& row : rows) {
          const double d_residual = row.d_residual[output];
          for (std::int64_t k = 0; k < d_in_; ++k) sums.d_weight[j][k] += d_residual * row.a[k];
          sums.d_bias[j] += d_residual;
          sums.d_norm_weight[j] += row.d_out[output] * row.m[output];
          sums.d_norm_bias[j] += row.d_out[output];
        }
      }
      for (std::size_t j = 0; j < sums.groups.size(); ++j) {
        for (const RowOfSums& row : rows) {
          for (std::int64_t k = sums.groups[j]; k < d_in_; k += group_weights()) {
            sums.d_group_norm_weight[j] += row.d_group_weight[k];
          }
        }
      }
    }
    return sums;
  }

  /// Sets the sums to what they are added to.
  void start(Sums& sums) const {
    for (const std::int64_t output : sums.outputs) {
      sums.d_weight.push_back(accumulate_ ? read_row(*gradients_.d_weight, output, 0, d_in_)
                                          : std::vector<double>(d_in_));
    }
    const auto set = [&](std::vector<double>& values, const std::vector<std::int64_t>& places,
                         const std::optional<TensorView>& before) {
      values.resize(places.size());
      if (!accumulate_ || !before) return;
      const std::vector<double> all = read_vector(*before);
      for (std::size_t i = 0; i < places.size(); ++i) values[i] = all[places[i]];
    };
    set(sums.d_bias, sums.outputs, gradients_.d_bias);
    set(sums.d_norm_weight, sums.outputs, gradients_.d_norm_weight);
    set(sums.d_norm_bias, sums.outputs, gradients_.d_norm_bias);
    set(sums.d_group_norm_weight, sums.groups, gradients_.d_group_norm_weight);
  }

  /// A few places of the sums. why by the sum that the call had or left: the definition's would
  /// take the product of all rows.
  Sums sampled_sums(const TensorSet& set, const Buffers& after) const {
    std::vector<std::int64_t> columns;  // whose d_a is wanted
    for (const std::int64_t group : some_of(group_weights(), kMostRows)) {
      for (std::int64_t k = group; k < d_in_; k += group_weights()) columns.push_back(k);
    }
    const bool normalizes = args_.norm != OutputNorm::kNone;
    return add_up([&, this](std::int64_t index) {
      RowOfSums row;
      GatedInputRow input = gated_input_row(args_, weights_, index);
      row.d_out = gradient_row(gradients_.d_out, index);
      OutputNormRow norm;
      norm.m.resize(d_);
      if (normalizes) {
        norm =
            output_norm_row(args_, weights_, read_row(view_after(set, after, "sum"), index, 0, d_));
      }
      row.d_residual = output_norm_gradient(args_, weights_, norm, row.d_out,
                                            gradient_row(gradients_.d_sum, index));
      row.m = std::move(norm.m);
      row.d_group_weight.resize(d_in_);
      for (std::int64_t j = 0; j < d_; ++j) {
        for (const std::int64_t k : columns) {
          row.d_group_weight[k] += row.d_residual[j] * weights_.weight[j][k];
        }
      }
      for (const std::int64_t k : columns) {
        row.d_group_weight[k] *= args_.norm_behind_gate ? input.n[k] : input.n[k] * input.value[k];
      }
      row.a = std::move(input.a);
      return row;
    });
  }

  GatedOutputForwardArgs args_;
  GatedOutputBackwardArgs gradients_;
  GatedOutputWeights weights_;
  std::int64_t M_, d_in_, d_;
  bool accumulate_, sampled_, is_given_sum_;
  std::vector<std::int64_t> rows_;
  Matrix d_o_, d_gate_, d_residual_;  // [rows]
  std::vector<RowOfSums> parts_;      // [rows], where all are chosen
  Sums sums_;                         // likewise
};

}  // namespace

std::unique_ptr<Expectation> expect_gated_output(const TensorSet& set, bool sampled) {
  return std::make_unique<ForwardExpectation>(set, sampled);
}

std::unique_ptr<Expectation> expect_gated_output_backward(const TensorSet& set, bool sampled) {
  return std::make_unique<BackwardExpectation>(set, sampled);
}

}  // namespace tandem::tools
