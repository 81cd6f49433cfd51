// The fp64 definition of gemm_swiglu and its gradients, as plain as the formula, but that n is
// rounded to x's dtype: where a relu's gate is close to 0, that decides. Trusted as
// tests/cpp/test_gemm_swiglu_definition.cpp is.
#pragma once

#include <cmath>
#include <cstdint>
#include <numbers>
#include <vector>

#include "reference/element.h"
#include "reference/rms_norm.h"
#include "tandem/ops/gemm_swiglu.h"
#include "tandem/tensor.h"

namespace tandem::reference {

/// An activation's value and derivative.
struct GateValue {
  double value, slope;
};

inline GateValue gate_value(GateActivation activation, double z) {
  switch (activation) {
    case GateActivation::kSilu: {
      const double sigmoid = 1 / (1 + std::exp(-z)), other = 1 / (1 + std::exp(z));
      return {z * sigmoid, sigmoid + z * sigmoid * other};
    }
    case GateActivation::kGelu: {
      const double below = std::erfc(-z / std::numbers::sqrt2) / 2;
      const double density = std::exp(-z * z / 2) / std::sqrt(2 * std::numbers::pi);
      return {z * below, below + z * density};
    }
    case GateActivation::kGeluTanh: {
      const double root = std::sqrt(2 / std::numbers::pi);
      const double y = root * (z + 0.044715 * z * z * z);
      // 1 + tanh(y) and 1 - tanh(y), without cancellation.
      const double above = 2 / (1 + std::exp(-2 * y)), rest = 2 / (1 + std::exp(2 * y));
      return {z / 2 * above, above / 2 + z / 2 * above * rest * root * (1 + 3 * 0.044715 * z * z)};
    }
    case GateActivation::kRelu: return {z > 0 ? z : 0, z > 0 ? 1.0 : 0.0};
  }
  return {};
}

/// A row of x, and n.
struct GatedInput {
  std::vector<double> x, n;
  double rstd = 0;  // of a norm
};

inline GatedInput read_input(const GemmSwigluForwardArgs& args, std::int64_t row) {
  GatedInput input{read_row(args.x, row, 0, args.x.shape[1]), {}};
  if (!args.norm_weight) {
    input.n = input.x;
    return input;
  }
  input.rstd = args.rstd ? element(args.rstd->dtype, args.rstd->data, row)
                         : rms_norm_rstd(input.x, args.eps.value_or(1e-6));
  input.n = rms_norm_row(input.x, input.rstd, read_vector(*args.norm_weight));
  for (double& n : input.n) n = rounded(args.x.dtype, n);
  return input;
}

/// Columns [first, first + count) of the result, with their weights as fp64.
struct GatedColumns {
  GateActivation activation;
  std::vector<std::vector<double>> gate_weight, up_weight;  // [count][d]

  GatedColumns(const GemmSwigluForwardArgs& args, std::int64_t first, std::int64_t count)
      : activation(args.activation) {
    for (std::int64_t j = first; j < first + count; ++j) {
      gate_weight.push_back(read_row(args.gate_weight, j, 0, args.x.shape[1]));
      up_weight.push_back(read_row(args.up_weight, j, 0, args.x.shape[1]));
    }
  }
};

/// What the columns are for one row, and what d_out is multiplied by for the gradients of both
/// products.
struct GatedRow {
  std::vector<double> out, gate_slope, up_slope;  // [count]
};

inline GatedRow gate_row(const GatedColumns& columns, const std::vector<double>& n) {
  GatedRow row;
  for (std::size_t j = 0; j < columns.gate_weight.size(); ++j) {
    double g = 0, u = 0;
    for (std::size_t i = 0; i < n.size(); ++i) g += n[i] * columns.gate_weight[j][i];
    for (std::size_t i = 0; i < n.size(); ++i) u += n[i] * columns.up_weight[j][i];
    const GateValue gate = gate_value(columns.activation, g);
    row.out.push_back(gate.value * u);
    row.gate_slope.push_back(gate.slope * u);
    row.up_slope.push_back(gate.value);
  }
  return row;
}

/// The gradient by n, of all columns.
inline std::vector<double> differentiate_row(const GatedColumns& columns, const GatedRow& row,
                                             const std::vector<double>& d_out, std::int64_t d) {
  std::vector<double> dn(d);
  for (std::size_t j = 0; j < d_out.size(); ++j) {
    for (std::size_t i = 0; i < dn.size(); ++i) {
      dn[i] += d_out[j] * row.gate_slope[j] * columns.gate_weight[j][i];
      dn[i] += d_out[j] * row.up_slope[j] * columns.up_weight[j][i];
    }
  }
  return dn;
}

}  // namespace tandem::reference
