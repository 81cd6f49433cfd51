// The fp64 definition of gla_state_forward: the recurrence without outputs, one token at a time,
// from a state of 0, and the sum of the log decays. Shares no code with reference/gla.h.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "reference/gla.h"

namespace tandem::reference {

struct EndState {
  std::vector<double> state;  // [K,V]
  double total_log_decay = 0;
};

/// Computes one sequence and head.
inline EndState gla_state_forward_one(const GlaRecurrence& p, std::int64_t n, std::int64_t h) {
  const auto boundary = [&](std::int64_t i) {
    return std::clamp<std::int64_t>(p.cu_seqlens[i], 0, p.T);
  };
  const std::int64_t b = p.cu_seqlens ? 0 : n;
  const std::int64_t begin = p.cu_seqlens ? boundary(n) : 0;
  const std::int64_t end = p.cu_seqlens ? boundary(n + 1) : p.T;
  const std::int64_t hq = h / (p.H / p.HQ);

  EndState span;
  std::vector<double>& S = span.state;
  S.assign(static_cast<std::size_t>(p.K) * p.V, 0.0);
  std::vector<double> k(p.K), v(p.V);
  for (std::int64_t t = begin; t < end; ++t) {
    const auto read = [&](const StridedTensor& x, std::int64_t head, std::vector<double>& row) {
      const std::int64_t offset = b * x.batch_stride + t * x.time_stride + head * x.head_stride;
      for (std::size_t i = 0; i < row.size(); ++i) row[i] = element(p.dtype, x.data, offset + i);
    };
    read(p.k, hq, k);
    read(p.v, h, v);
    const DecayTensor& g = p.log_decay;
    const double log_decay =
        g.data ? real(p.dtype, g.data, b * g.batch_stride + t * g.time_stride + h * g.head_stride)
               : 0.0;
    const bool resets = forgets(p.dtype, log_decay);
    const double decay = resets ? 0.0 : std::exp(log_decay);
    span.total_log_decay += resets ? -std::numeric_limits<double>::infinity() : log_decay;
    if (resets) std::fill(S.begin(), S.end(), 0.0);  // exactly, whatever S held
    for (int i = 0; i < p.K; ++i) {
      for (int j = 0; j < p.V; ++j) {
        double& s = S[static_cast<std::size_t>(i) * p.V + j];
        s = decay * s + k[i] * v[j];
      }
    }
  }
  return span;
}

}  // namespace tandem::reference
