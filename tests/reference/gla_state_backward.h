// The fp64 definition of gla_state_backward: the gradient by the state, one token at a time from
// the last to the first, from a gradient of 0, and the sum of the log decays. As
// reference/gla_state.h, and apart from it.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "reference/gla_state.h"

namespace tandem::reference {

/// Computes one sequence and head.
inline EndState gla_state_backward_one(const GlaStateBackwardProblem& p, std::int64_t n,
                                       std::int64_t h) {
  const auto boundary = [&](std::int64_t i) {
    return std::clamp<std::int64_t>(p.cu_seqlens[i], 0, p.T);
  };
  const std::int64_t b = p.cu_seqlens ? 0 : n;
  const std::int64_t begin = p.cu_seqlens ? boundary(n) : 0;
  const std::int64_t end = p.cu_seqlens ? boundary(n + 1) : p.T;
  const std::int64_t hq = h / (p.H / p.HQ);

  EndState span;
  std::vector<double>& dS = span.state;
  dS.assign(static_cast<std::size_t>(p.K) * p.V, 0.0);
  std::vector<double> q(p.K), d_o(p.V);
  for (std::int64_t t = end - 1; t >= begin; --t) {
    const auto read = [&](const StridedTensor& x, std::int64_t head, std::vector<double>& row) {
      const std::int64_t offset = b * x.batch_stride + t * x.time_stride + head * x.head_stride;
      for (std::size_t i = 0; i < row.size(); ++i) row[i] = element(p.dtype, x.data, offset + i);
    };
    read(p.k, hq, q);  // the problem's names: its k is q, its v is d_o
    read(p.v, h, d_o);
    const DecayTensor& g = p.log_decay;
    const double log_decay =
        g.data ? real(p.dtype, g.data, b * g.batch_stride + t * g.time_stride + h * g.head_stride)
               : 0.0;
    const bool resets = forgets(p.dtype, log_decay);
    const double decay = std::exp(log_decay);
    span.total_log_decay += resets ? -std::numeric_limits<double>::infinity() : log_decay;
    for (int i = 0; i < p.K; ++i) {
      for (int j = 0; j < p.V; ++j) {
        double& s = dS[static_cast<std::size_t>(i) * p.V + j];
        s = decay * (s + scale_of<double>(p) * q[i] * d_o[j]);
      }
    }
    if (resets) std::fill(dS.begin(), dS.end(), 0.0);  // exactly, whatever dS held
  }
  return span;
}

}  // namespace tandem::reference
