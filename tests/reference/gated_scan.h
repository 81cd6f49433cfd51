// The fp64 definition of gated_scan and its gradients: the recurrence of one channel, one token at
// a time, as plain as the formula. Tests trust it (the gradients because
// tests/cpp/test_gated_scan_definition.cpp holds them against differences of the forward); nothing
// else should use it, it is slow. Shares no code with the backends but the exact conversions.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

#include "ops/gated_scan_problem.h"
#include "reference/element.h"

namespace tandem::reference {

/// Tokens [begin,end) of sequence n, in batch row b; cu_seqlens clamped into [0,T].
struct Span {
  std::int64_t b = 0, begin = 0, end = 0;

  std::int64_t length() const { return end - begin; }
};

inline Span span_of(const ScanRecurrence& p, std::int64_t n) {
  if (!p.cu_seqlens) return {n, 0, p.T};
  const auto boundary = [&](std::int64_t i) {
    return std::clamp<std::int64_t>(p.cu_seqlens[i], 0, p.T);
  };
  return {0, boundary(n), std::max(boundary(n), boundary(n + 1))};
}

/// Reads channel d of a span of a [B,T,D] tensor.
inline std::vector<double> read_channel(DType dtype, const TokenTensor& x, const Span& span,
                                        int d) {
  std::vector<double> values(span.length());
  for (std::int64_t t = 0; t < span.length(); ++t) {
    const std::int64_t at = span.b * x.batch_stride + (span.begin + t) * x.time_stride + d;
    values[t] = element(dtype, x.data, at);
  }
  return values;
}

inline double silu(double z) { return z / (1 + std::exp(-z)); }

inline double silu_derivative(double z) {
  const double s = 1 / (1 + std::exp(-z));
  return s * (1 + z * (1 - s));
}

/// A channel of one sequence, over its own tokens.
struct ScanChannel {
  std::vector<double> decay;
  std::vector<double> gate;    // empty: none
  std::vector<double> states;  // [tokens + 1], from the initial to the final
  std::vector<double> out;
};

/// Scans a channel; `x` is gated_scan's own at the channel's tokens, or what another op scans.
inline ScanChannel scan_forward_one(const ScanRecurrence& p, const std::vector<double>& x,
                                    std::int64_t n, int d) {
  const Span span = span_of(p, n);
  ScanChannel c;
  c.decay = read_channel(p.decay_dtype, p.decay, span, d);
  for (double& a : c.decay) a = p.log_decay ? std::exp(a) : a;
  if (p.gate.data) c.gate = read_channel(p.dtype, p.gate, span, d);
  c.states.push_back(p.initial_state ? real(p.dtype, p.initial_state, n * p.D + d) : 0.0);
  for (std::int64_t t = 0; t < span.length(); ++t) {
    const double kept = c.decay[t] == 0 ? 0 : c.decay[t] * c.states[t];  // 0 forgets exactly
    c.states.push_back(kept + x[t]);
    c.out.push_back((c.gate.empty() ? 1 : silu(c.gate[t])) * c.states[t + 1]);
  }
  return c;
}

inline ScanChannel gated_scan_forward_one(const GatedScanForwardProblem& p, std::int64_t n, int d) {
  return scan_forward_one(p, read_channel(p.dtype, p.x, span_of(p, n), d), n, d);
}

/// Gradients of a channel of one sequence, over its own tokens.
struct ScanChannelGradients {
  std::vector<double> dx, d_decay, d_gate;  // d_decay by the log where that was given
  double d_initial_state = 0;
};

inline ScanChannelGradients scan_backward_one(const ScanRecurrence& p, const ScanChannel& c,
                                              const std::vector<double>& d_out,
                                              double d_final_state) {
  const auto T = static_cast<std::int64_t>(d_out.size());
  ScanChannelGradients g{std::vector<double>(T), std::vector<double>(T),
                         std::vector<double>(c.gate.size()), 0};
  double carry = d_final_state;  // by the state after the token
  for (std::int64_t t = T - 1; t >= 0; --t) {
    const double a = c.decay[t], before = c.states[t];
    const double ds = carry + (c.gate.empty() ? 1 : silu(c.gate[t])) * d_out[t];
    if (!c.gate.empty()) g.d_gate[t] = silu_derivative(c.gate[t]) * c.states[t + 1] * d_out[t];
    g.dx[t] = ds;
    g.d_decay[t] = !p.log_decay ? before * ds : a == 0 ? 0 : a * before * ds;
    carry = a == 0 ? 0 : a * ds;
  }
  g.d_initial_state = carry;
  return g;
}

inline ScanChannelGradients gated_scan_backward_one(const GatedScanBackwardProblem& problem,
                                                    std::int64_t n, int d) {
  const GatedScanForwardProblem& p = problem.forward;
  const double d_final =
      problem.d_final_state ? real(p.dtype, problem.d_final_state, n * p.D + d) : 0.0;
  return scan_backward_one(p, gated_scan_forward_one(p, n, d),
                           read_channel(p.dtype, problem.d_out, span_of(p, n), d), d_final);
}

}  // namespace tandem::reference
