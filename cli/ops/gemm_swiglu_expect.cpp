// gemm_swiglu's outputs and gradients against the fp64 definition: rows of what has rows, columns
// of what is summed over them. Gradients are those of the whole forward, so that what it keeps for
// them is judged, too.
#include <algorithm>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "cli/calls/arguments.h"
#include "cli/ops/gemm_swiglu.h"
#include "cli/ops/product.h"
#include "ops/gemm_swiglu.h"
#include "reference/gemm_swiglu.h"

namespace tandem::tools {
namespace {

using reference::differentiate_row;
using reference::gate_row;
using reference::GatedColumns;
using reference::GatedInput;
using reference::GatedRow;
using reference::read_input;
using reference::read_row;
using reference::read_vector;
using reference::rms_norm_row_gradient;
using reference::RmsNormRowGradient;

/// Limit on the relative error of a result: its own rounding, those of n that fall on its other
/// side, and for gradients those of what the forward kept, of dg and du, and of dn.
double limit_of(DType dtype, bool gradient) {
  switch (dtype) {
    case DType::kBFloat16: return gradient ? 4e-3 : 3.2e-3;
    case DType::kFloat16: return gradient ? 6e-4 : 4e-4;
    case DType::kFloat64: return 1e-13;
    default: return 1e-5;
  }
}

/// A set's forward call: its inputs and numbers, outputs or none.
GemmSwigluForwardArgs forward_of(const TensorSet& set) {
  return host_arguments<GemmSwigluForwardArgs>(gemm_swiglu_forward_signature(), set);
}

class ForwardExpectation : public Expectation {
 public:
  ForwardExpectation(const TensorSet& set, bool sampled)
      : args_(forward_of(set)),
        rows_(some_of(args_.x.shape[0], sampled ? kMostRows : args_.x.shape[0])),
        defined_(rows_.size()),
        rstd_(rows_.size()) {
    make_problem(args_);
    const GatedColumns columns(args_, 0, args_.gate_weight.shape[0]);
#pragma omp parallel for schedule(dynamic)
    for (std::size_t i = 0; i < rows_.size(); ++i) {
      const GatedInput input = read_input(args_, rows_[i]);
      defined_[i] = gate_row(columns, input.n);
      rstd_[i] = input.rstd;
    }
  }

  std::vector<OutputError> compare(const TensorSet& set, const Buffers& after) const override {
    std::vector<OutputError> errors;
    const auto add = [&](const char* name, std::vector<double> GatedRow::*values) {
      if (!is_output(set, name)) return;
      RowComparison comparison(set, after, name);
      for (std::size_t i = 0; i < rows_.size(); ++i) {
        comparison.row(rows_[i], defined_[i].*values);
      }
      errors.push_back(comparison.error(limit_of(args_.x.dtype, false)));
    };
    add("out", &GatedRow::out);
    add("gate_slope", &GatedRow::gate_slope);
    add("up_slope", &GatedRow::up_slope);
    if (is_output(set, "kept_rstd")) {
      RowComparison comparison(set, after, "kept_rstd");
      for (std::size_t i = 0; i < rows_.size(); ++i) comparison.row(0, {rstd_[i]}, rows_[i]);
      errors.push_back(comparison.error(limit_of(comparison.dtype(), false)));
    }
    return errors;
  }

 private:
  static bool is_output(const TensorSet& set, const char* name) {
    const NamedTensor* tensor = set.find(name);
    return tensor != nullptr && tensor->output;
  }

  GemmSwigluForwardArgs args_;
  std::vector<std::int64_t> rows_;
  std::vector<GatedRow> defined_;  // [rows]
  std::vector<double> rstd_;       // [rows]
};

/// Sums over all rows of dg^T n and du^T n, for some columns of the weights.
struct ExpectedSums {
  std::vector<std::int64_t> chosen;           // of the columns
  std::vector<std::vector<double>> gate, up;  // [chosen][d]
};

class BackwardExpectation : public Expectation {
 public:
  BackwardExpectation(const TensorSet& set, bool sampled)
      : args_(forward_of(set)),
        gradients_(host_arguments<GemmSwigluBackwardArgs>(gemm_swiglu_backward_signature(), set)),
        accumulate_(set.scalars.at("accumulate") != 0),
        sampled_(sampled) {
    make_problem(gradients_);
    M_ = args_.x.shape[0], d_ = args_.x.shape[1], F_ = args_.gate_weight.shape[0];
    rows_ = some_of(M_, sampled ? kMostRows : M_);
    define_rows();
    define_sums();
  }

  std::vector<OutputError> compare(const TensorSet& set, const Buffers& after) const override {
    const double limit = limit_of(args_.x.dtype, true);
    RowComparison dx(set, after, "dx");
    for (std::size_t i = 0; i < rows_.size(); ++i) dx.row(rows_[i], dx_[i]);
    std::vector<OutputError> errors = {dx.error(limit)};
    const auto add = [&](const char* name, const std::vector<std::vector<double>>& expected) {
      RowComparison comparison(set, after, name);
      for (std::size_t j = 0; j < expected.size(); ++j) {
        comparison.row(sums_.chosen[j], expected[j]);
      }
      errors.push_back(comparison.error(limit));
    };
    add("d_gate_weight", sums_.gate);
    add("d_up_weight", sums_.up);
    if (args_.norm_weight) {
      RowComparison d_norm_weight(set, after, "d_norm_weight");
      if (sampled_) {
        // A baseline that keeps something else has no slopes after its forward.
        if (set.find("out") && !set.get("gate_slope").output) return errors;
        for (const auto& [column, sum] : sampled_norm_sums(set, after)) {
          d_norm_weight.row(0, {sum}, column);
        }
      } else {
        d_norm_weight.row(0, d_norm_weight_);
      }
      errors.push_back(d_norm_weight.error(limit));
    }
    return errors;
  }

 private:
  std::vector<double> d_out_row(std::int64_t row, std::int64_t first, std::int64_t count) const {
    return read_row(gradients_.d_out, row, first, count);
  }

  /// What a gradient of a weight is added to.
  std::vector<double> before(const std::optional<TensorView>& view, std::int64_t row) const {
    return accumulate_ && view ? read_row(*view, row, 0, d_) : std::vector<double>(d_);
  }

  /// dx of the chosen rows, and where these are all of them the norm weight's gradient.
  void define_rows() {
    const GatedColumns columns(args_, 0, F_);
    dx_.resize(rows_.size());
    std::vector<std::vector<double>> parts(rows_.size());
#pragma omp parallel for schedule(dynamic)
    for (std::size_t i = 0; i < rows_.size(); ++i) {
      const GatedInput input = read_input(args_, rows_[i]);
      dx_[i] =
          differentiate_row(columns, gate_row(columns, input.n), d_out_row(rows_[i], 0, F_), d_);
      if (!args_.norm_weight) continue;
      RmsNormRowGradient norm =
          rms_norm_row_gradient(input.x, input.rstd, read_vector(*args_.norm_weight), dx_[i]);
      dx_[i] = std::move(norm.dx);
      parts[i] = std::move(norm.d_weight);
    }
    if (!args_.norm_weight || sampled_) return;
    d_norm_weight_.resize(d_);
    if (accumulate_) d_norm_weight_ = read_vector(*gradients_.d_norm_weight);
    for (const std::vector<double>& part : parts) {
      for (std::int64_t j = 0; j < d_; ++j) d_norm_weight_[j] += part[j];
    }
  }

  /// The weights' gradients, of all columns or, where rows are sampled, of a few of the last ones.
  void define_sums() {
    constexpr std::int64_t kColumns = 16, kChosen = 4;
    const std::int64_t count = sampled_ ? std::min(F_, kColumns) : F_;
    const std::int64_t first = F_ - count;
    const GatedColumns columns(args_, first, count);
    const std::vector<std::int64_t> places = some_of(count, sampled_ ? kChosen : count);
    for (const std::int64_t place : places) {
      sums_.chosen.push_back(first + place);
      sums_.gate.push_back(before(gradients_.d_gate_weight, first + place));
      sums_.up.push_back(before(gradients_.d_up_weight, first + place));
    }
    // A batch of rows in parallel, then the sums, each in the order of rows.
    constexpr std::int64_t kBatch = 256;
    for (std::int64_t begin = 0; begin < M_; begin += kBatch) {
      const std::int64_t rows = std::min(kBatch, M_ - begin);
      std::vector<GatedInput> inputs(rows);
      std::vector<GatedRow> slopes(rows);
      std::vector<std::vector<double>> d_out(rows);
#pragma omp parallel for schedule(dynamic)
      for (std::int64_t row = 0; row < rows; ++row) {
        inputs[row] = read_input(args_, begin + row);
        slopes[row] = gate_row(columns, inputs[row].n);
        d_out[row] = d_out_row(begin + row, first, count);
      }
#pragma omp parallel for schedule(static)
      for (std::size_t j = 0; j < places.size(); ++j) {
        const std::int64_t place = places[j];
        for (std::int64_t row = 0; row < rows; ++row) {
          const double dg = d_out[row][place] * slopes[row].gate_slope[place];
          const double du = d_out[row][place] * slopes[row].up_slope[place];
          for (std::int64_t k = 0; k < d_; ++k) {
            sums_.gate[j][k] += dg * inputs[row].n[k];
            sums_.up[j][k] += du * inputs[row].n[k];
          }
        }
      }
    }
  }

  /// Columns of the norm weight's gradient. why by the slopes that the call had or left: it is a
  /// sum over all rows of all columns, and the definition's slopes would take the whole of both
  /// products.
  std::vector<std::pair<std::int64_t, double>> sampled_norm_sums(const TensorSet& set,
                                                                 const Buffers& after) const {
    constexpr std::int64_t kChosen = 16;
    const TensorView gate_slope = view_after(set, after, "gate_slope");
    const TensorView up_slope = view_after(set, after, "up_slope");
    const std::vector<std::int64_t> chosen = some_of(d_, kChosen);
    // [F][chosen]
    std::vector<std::vector<double>> gate_weight(F_), up_weight(F_);
    for (std::int64_t j = 0; j < F_; ++j) {
      for (const std::int64_t k : chosen) {
        gate_weight[j].push_back(read_row(args_.gate_weight, j, k, 1)[0]);
        up_weight[j].push_back(read_row(args_.up_weight, j, k, 1)[0]);
      }
    }
    std::vector<std::vector<double>> parts(M_, std::vector<double>(chosen.size()));
#pragma omp parallel for schedule(dynamic)
    for (std::int64_t row = 0; row < M_; ++row) {
      const GatedInput input = read_input(args_, row);
      const std::vector<double> d_out = d_out_row(row, 0, F_);
      const std::vector<double> gate = read_row(gate_slope, row, 0, F_);
      const std::vector<double> up = read_row(up_slope, row, 0, F_);
      for (std::int64_t j = 0; j < F_; ++j) {
        for (std::size_t k = 0; k < chosen.size(); ++k) {
          parts[row][k] += d_out[j] * (gate[j] * gate_weight[j][k] + up[j] * up_weight[j][k]);
        }
      }
      for (std::size_t k = 0; k < chosen.size(); ++k) {
        parts[row][k] *= input.x[chosen[k]] * input.rstd;
      }
    }
    std::vector<std::pair<std::int64_t, double>> sums;
    const std::vector<double> start =
        accumulate_ ? read_vector(*gradients_.d_norm_weight) : std::vector<double>(d_);
    for (std::size_t k = 0; k < chosen.size(); ++k) {
      double sum = start[chosen[k]];
      for (const std::vector<double>& part : parts) sum += part[k];
      sums.emplace_back(chosen[k], sum);
    }
    return sums;
  }

  GemmSwigluForwardArgs args_;
  GemmSwigluBackwardArgs gradients_;
  bool accumulate_, sampled_;
  std::int64_t M_ = 0, d_ = 0, F_ = 0;
  std::vector<std::int64_t> rows_;
  std::vector<std::vector<double>> dx_;  // [rows][d]
  std::vector<double> d_norm_weight_;    // [d], where all rows are chosen
  ExpectedSums sums_;
};

}  // namespace

std::unique_ptr<Expectation> expect_gemm_swiglu(const TensorSet& set, bool sampled) {
  return std::make_unique<ForwardExpectation>(set, sampled);
}

std::unique_ptr<Expectation> expect_gemm_swiglu_backward(const TensorSet& set, bool sampled) {
  return std::make_unique<BackwardExpectation>(set, sampled);
}

}  // namespace tandem::tools
