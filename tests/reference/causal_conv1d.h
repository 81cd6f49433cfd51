// The fp64 definition of causal_conv1d and its gradients: one channel of one sequence, as plain as
// the formula. Tests trust it (the gradients because
// tests/cpp/test_causal_conv1d_definition.cpp holds them against differences of the forward);
// nothing else should use it, it is slow. Shares no code with the backends but the exact
// conversions.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

#include "ops/causal_conv1d_problem.h"
#include "reference/element.h"

namespace tandem::reference {

/// Tokens [begin,end) of sequence n, in batch row b; cu_seqlens clamped into [0,T].
struct ConvSpan {
  std::int64_t b = 0, begin = 0, end = 0;

  std::int64_t length() const { return end - begin; }
};

inline ConvSpan conv_span(const CausalConv1dForwardProblem& p, std::int64_t n) {
  if (!p.cu_seqlens) return {n, 0, p.T};
  const auto boundary = [&](std::int64_t i) {
    return std::clamp<std::int64_t>(p.cu_seqlens[i], 0, p.T);
  };
  return {0, boundary(n), std::max(boundary(n), boundary(n + 1))};
}

/// Reads channel d of a span of a [B,T,D] tensor.
inline std::vector<double> read_conv_tokens(DType dtype, const TokenTensor& x, const ConvSpan& span,
                                            int d) {
  std::vector<double> values;
  for (std::int64_t t = span.begin; t < span.end; ++t) {
    values.push_back(element(dtype, x.data, span.b * x.batch_stride + t * x.time_stride + d));
  }
  return values;
}

/// Reads the W - 1 tokens of channel d of a state; a null one is 0.
inline std::vector<double> read_conv_state(const CausalConv1d& p, const ConvState& state,
                                           std::int64_t n, int d) {
  std::vector<double> values(p.W - 1);
  for (int j = 0; j + 1 < p.W && state.data; ++j) {
    values[j] =
        element(p.dtype, state.data,
                n * state.sequence_stride + d * state.channel_stride + j * state.token_stride);
  }
  return values;
}

inline double conv_tap(const ConvTaps& taps, int d, int w) {
  return taps.data ? element(taps.dtype, taps.data, d * taps.channel_stride + w) : 0.0;
}

/// One channel of one sequence: the inputs are the W - 1 tokens of the initial state, then its own.
struct ConvChannel {
  std::vector<double> inputs, z, out, final_state;
};

inline ConvChannel convolve_channel(const CausalConv1d& p, std::vector<double> state,
                                    const std::vector<double>& x, int d) {
  ConvChannel c;
  c.inputs = std::move(state);
  c.inputs.insert(c.inputs.end(), x.begin(), x.end());
  for (std::size_t t = 0; t < x.size(); ++t) {
    double z = conv_tap(p.bias, d, 0);
    for (int w = 0; w < p.W; ++w) z += conv_tap(p.weight, d, w) * c.inputs[t + w];
    c.z.push_back(z);
    c.out.push_back(p.silu ? z / (1 + std::exp(-z)) : z);
  }
  c.final_state.assign(c.inputs.end() - (p.W - 1), c.inputs.end());
  return c;
}

inline ConvChannel causal_conv1d_forward_one(const CausalConv1dForwardProblem& p, std::int64_t n,
                                             int d) {
  return convolve_channel(p, read_conv_state(p, p.initial_state, n, d),
                          read_conv_tokens(p.dtype, p.x, conv_span(p, n), d), d);
}

/// Gradients of one channel of one sequence; those of the taps are its share.
struct ConvChannelGradients {
  std::vector<double> dx, d_initial_state, d_weight;
  double d_bias = 0;
};

inline ConvChannelGradients causal_conv1d_backward_one(const CausalConv1dBackwardProblem& problem,
                                                       std::int64_t n, int d) {
  const CausalConv1dForwardProblem& p = problem.forward;
  const ConvChannel c = causal_conv1d_forward_one(p, n, d);
  std::vector<double> dz = read_conv_tokens(p.dtype, problem.d_out, conv_span(p, n), d);
  ConvChannelGradients g;
  g.d_weight.resize(p.W);
  std::vector<double> d_inputs(c.inputs.size());
  for (std::size_t t = 0; t < dz.size(); ++t) {
    const double s = 1 / (1 + std::exp(-c.z[t]));
    if (p.silu) dz[t] *= s * (1 + c.z[t] * (1 - s));
    for (int w = 0; w < p.W; ++w) {
      d_inputs[t + w] += conv_tap(p.weight, d, w) * dz[t];
      g.d_weight[w] += c.inputs[t + w] * dz[t];
    }
    g.d_bias += dz[t];
  }
  const std::vector<double> d_final = read_conv_state(p, problem.d_final_state, n, d);
  for (std::size_t j = 0; j < d_final.size(); ++j) {
    d_inputs[d_inputs.size() - d_final.size() + j] += d_final[j];
  }
  g.d_initial_state.assign(d_inputs.begin(), d_inputs.begin() + (p.W - 1));
  g.dx.assign(d_inputs.begin() + (p.W - 1), d_inputs.end());
  return g;
}

/// Out, and the state after the token, of one channel of one sequence.
inline ConvChannel causal_conv1d_step_one(const CausalConv1dStepProblem& p, std::int64_t b, int d) {
  return convolve_channel(p, read_conv_state(p, p.state, b, d),
                          {element(p.dtype, p.x.data, b * p.x.row_stride + d)}, d);
}

}  // namespace tandem::reference
