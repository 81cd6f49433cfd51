// The fp64 definition of gated_output and its gradients, as plain as the formula: nothing is
// rounded. Trusted as tests/cpp/test_gated_output_definition.cpp is.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "reference/element.h"
#include "tandem/ops/gated_output.h"

namespace tandem::reference {

/// f of a gate and its derivative.
struct OutputGateValue {
  double value, slope;
};

inline OutputGateValue output_gate_value(OutputGate activation, double g) {
  const double sigmoid = 1 / (1 + std::exp(-g)), other = 1 / (1 + std::exp(g));
  switch (activation) {
    case OutputGate::kSilu: return {g * sigmoid, sigmoid + g * sigmoid * other};
    case OutputGate::kSigmoid: return {sigmoid, sigmoid * other};
    default: return {g, 1};
  }
}

/// What all rows share, in fp64; a weight of h as [d_in]. Absent: empty.
struct GatedOutputWeights {
  explicit GatedOutputWeights(const GatedOutputForwardArgs& args) {
    const std::int64_t d_in = args.o.shape[1];
    for (std::int64_t j = 0; j < args.weight.shape[0]; ++j) {
      weight.push_back(read_row(args.weight, j, 0, d_in));
    }
    if (args.bias) bias = read_vector(*args.bias);
    if (args.norm_weight) norm_weight = read_vector(*args.norm_weight);
    if (args.norm_bias) norm_bias = read_vector(*args.norm_bias);
    if (!args.group_norm_weight) return;
    const std::vector<double> given = read_vector(*args.group_norm_weight);
    for (std::int64_t i = 0; i < d_in; ++i) group_weight.push_back(given[i % given.size()]);
  }

  std::vector<std::vector<double>> weight;  // [d][d_in]
  std::vector<double> bias, group_weight, norm_weight, norm_bias;
};

/// A row in front of the product.
struct GatedInputRow {
  std::vector<double> o, value, slope;  // f(gate) and f'(gate), 1 and 0 without a gate
  std::vector<double> n, group_rstd;    // of h: y rstd, and rstd by group
  std::vector<double> a;
};

inline GatedInputRow gated_input_row(const GatedOutputForwardArgs& args,
                                     const GatedOutputWeights& weights, std::int64_t row) {
  GatedInputRow made;
  const std::int64_t d_in = args.o.shape[1];
  made.o = read_row(args.o, row, 0, d_in);
  made.value.assign(d_in, 1);
  made.slope.assign(d_in, 0);
  if (args.gate) {
    const std::vector<double> gate = read_row(*args.gate, row, 0, d_in);
    for (std::int64_t i = 0; i < d_in; ++i) {
      const OutputGateValue f = output_gate_value(args.gate_activation, gate[i]);
      made.value[i] = f.value, made.slope[i] = f.slope;
    }
  }
  for (std::int64_t i = 0; i < d_in; ++i) made.a.push_back(made.o[i] * made.value[i]);
  if (!args.group_norm_weight) return made;
  const std::vector<double> y = args.norm_behind_gate ? made.a : made.o;
  const std::int64_t width = *args.group_width;
  for (std::int64_t first = 0; first < d_in; first += width) {
    double squares = 0;
    for (std::int64_t i = first; i < first + width; ++i) squares += y[i] * y[i];
    const double mean = squares / static_cast<double>(width);
    made.group_rstd.push_back(1 / std::sqrt(mean + args.group_eps.value_or(1e-6)));
  }
  for (std::int64_t i = 0; i < d_in; ++i) {
    made.n.push_back(y[i] * made.group_rstd[i / width]);
    made.a[i] = made.n[i] * weights.group_weight[i];
    if (!args.norm_behind_gate) made.a[i] *= made.value[i];
  }
  return made;
}

inline std::vector<double> output_sum_row(const GatedOutputForwardArgs& args,
                                          const GatedOutputWeights& weights,
                                          const std::vector<double>& a, std::int64_t row) {
  const auto d = static_cast<std::int64_t>(weights.weight.size());
  std::vector<double> sum = args.residual ? read_row(*args.residual, row, 0, d)
                                          : std::vector<double>(static_cast<std::size_t>(d));
  for (std::int64_t j = 0; j < d; ++j) {
    for (std::size_t i = 0; i < a.size(); ++i) sum[j] += a[i] * weights.weight[j][i];
    if (!weights.bias.empty()) sum[j] += weights.bias[j];
  }
  return sum;
}

/// The norm of a sum; without one, out is the sum.
struct OutputNormRow {
  double mean = 0, rstd = 1;
  std::vector<double> m, out;  // m = (sum - mean) rstd
};

inline OutputNormRow output_norm_row(const GatedOutputForwardArgs& args,
                                     const GatedOutputWeights& weights,
                                     const std::vector<double>& sum) {
  OutputNormRow made;
  made.m = made.out = sum;
  if (args.norm == OutputNorm::kNone) return made;
  const auto d = static_cast<double>(sum.size());
  if (args.norm == OutputNorm::kLayerNorm) {
    for (const double value : sum) made.mean += value / d;
  }
  double squares = 0;
  for (const double value : sum) squares += (value - made.mean) * (value - made.mean);
  made.rstd = 1 / std::sqrt(squares / d + args.eps.value_or(1e-6));
  for (std::size_t j = 0; j < sum.size(); ++j) {
    made.m[j] = (sum[j] - made.mean) * made.rstd;
    made.out[j] = made.m[j];
    if (!weights.norm_weight.empty()) made.out[j] *= weights.norm_weight[j];
    if (!weights.norm_bias.empty()) made.out[j] += weights.norm_bias[j];
  }
  return made;
}

/// The gradient by a row of the sum, and so of the residual.
inline std::vector<double> output_norm_gradient(const GatedOutputForwardArgs& args,
                                                const GatedOutputWeights& weights,
                                                const OutputNormRow& norm,
                                                const std::vector<double>& d_out,
                                                const std::vector<double>& d_sum) {
  std::vector<double> g = d_out;
  if (args.norm != OutputNorm::kNone) {
    const auto d = static_cast<double>(g.size());
    double along = 0, mean = 0;
    for (std::size_t j = 0; j < g.size(); ++j) {
      if (!weights.norm_weight.empty()) g[j] *= weights.norm_weight[j];
      along += g[j] * norm.m[j] / d;
      if (args.norm == OutputNorm::kLayerNorm) mean += g[j] / d;
    }
    for (std::size_t j = 0; j < g.size(); ++j) {
      g[j] = norm.rstd * (g[j] - norm.m[j] * along - mean);
    }
  }
  for (std::size_t j = 0; j < g.size(); ++j) g[j] += d_sum[j];
  return g;
}

inline std::vector<double> output_product_gradient(const GatedOutputWeights& weights,
                                                   const std::vector<double>& d_residual) {
  std::vector<double> d_a(weights.weight.front().size());
  for (std::size_t j = 0; j < d_residual.size(); ++j) {
    for (std::size_t i = 0; i < d_a.size(); ++i) d_a[i] += d_residual[j] * weights.weight[j][i];
  }
  return d_a;
}

/// The gradients in front of the product; by h's weight what a row adds to it, as [d_in].
struct GatedInputGradient {
  std::vector<double> d_o, d_gate, d_group_weight;
};

inline GatedInputGradient gated_input_gradient(const GatedOutputForwardArgs& args,
                                               const GatedOutputWeights& weights,
                                               const GatedInputRow& row,
                                               const std::vector<double>& d_a) {
  const std::size_t d_in = d_a.size();
  const bool has_h = !weights.group_weight.empty();
  GatedInputGradient made;
  std::vector<double> d_y = d_a, d_value(d_in);
  if (has_h) {
    if (!args.norm_behind_gate) {
      for (std::size_t i = 0; i < d_in; ++i) {
        d_value[i] = d_a[i] * row.n[i] * weights.group_weight[i];
        d_y[i] *= row.value[i];
      }
    }
    for (std::size_t i = 0; i < d_in; ++i) {
      made.d_group_weight.push_back(d_y[i] * row.n[i]);
      d_y[i] *= weights.group_weight[i];
    }
    const auto width = static_cast<std::size_t>(*args.group_width);
    for (std::size_t first = 0; first < d_in; first += width) {
      double along = 0;
      for (std::size_t i = first; i < first + width; ++i) along += d_y[i] * row.n[i];
      along /= static_cast<double>(width);
      for (std::size_t i = first; i < first + width; ++i) {
        d_y[i] = row.group_rstd[first / width] * (d_y[i] - row.n[i] * along);
      }
    }
  }
  made.d_o = d_y;
  if (!has_h || args.norm_behind_gate) {
    for (std::size_t i = 0; i < d_in; ++i) {
      made.d_o[i] = d_y[i] * row.value[i];
      d_value[i] = d_y[i] * row.o[i];
    }
  }
  for (std::size_t i = 0; i < d_in; ++i) made.d_gate.push_back(d_value[i] * row.slope[i]);
  return made;
}

}  // namespace tandem::reference
