// The fp64 definition of gla: the recurrence, one token at a time, as plain as the formula. Tests
// trust it; nothing else should use it, it is slow. Shares no code with the backends but the exact
// conversions.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "ops/gla_problem.h"
#include "reference/element.h"

namespace tandem::reference {

struct SequenceHead {
  std::int64_t n;
  int h;
};

/// Computes one sequence and head; o [B,T,H,V] and final_state [N,H,K,V] are contiguous. Appends to
/// `saved_states` the states [K,V] before every kSavedStateTokens tokens.
inline void gla_forward_one(const GlaForwardProblem& p, std::int64_t n, int h, double* o,
                            double* final_state, std::vector<double>* saved_states = nullptr) {
  const std::int64_t b = p.cu_seqlens ? 0 : n;
  const auto boundary = [&](std::int64_t i) {
    return std::clamp<std::int64_t>(p.cu_seqlens[i], 0, p.T);
  };
  const std::int64_t begin = p.cu_seqlens ? boundary(n) : 0;
  const std::int64_t end = p.cu_seqlens ? boundary(n + 1) : p.T;
  const int hq = h / (p.H / p.HQ);
  const int K = p.K, V = p.V;

  double* S = final_state + (n * p.H + h) * K * V;
  const std::int64_t first = (n * p.H + h) * K * V;
  for (int i = 0; i < K * V; ++i) {
    S[i] = p.initial_state ? real(p.dtype, p.initial_state, first + i) : 0.0;
  }

  std::vector<double> q(K), k(K), v(V);
  for (std::int64_t t = begin; t < end; ++t) {
    if (saved_states && (t - begin) % kSavedStateTokens == 0) {
      saved_states->insert(saved_states->end(), S, S + K * V);
    }
    const auto read = [&](const StridedTensor& x, int head, std::vector<double>& row) {
      const std::int64_t offset = b * x.batch_stride + t * x.time_stride + head * x.head_stride;
      for (std::size_t i = 0; i < row.size(); ++i) row[i] = element(p.dtype, x.data, offset + i);
    };
    read(p.q, hq, q);
    read(p.k, hq, k);
    read(p.v, h, v);
    const DecayTensor& g = p.log_decay;
    const double decay =
        g.data ? std::exp(real(p.dtype, g.data,
                               b * g.batch_stride + t * g.time_stride + h * g.head_stride))
               : 1.0;
    if (decay == 0.0) std::fill(S, S + K * V, 0.0);  // forgets exactly, whatever S held
    double* o_t = o + ((b * p.T + t) * p.H + h) * V;
    for (int j = 0; j < V; ++j) o_t[j] = 0.0;
    for (int i = 0; i < K; ++i) {
      for (int j = 0; j < V; ++j) {
        S[i * V + j] = decay * S[i * V + j] + k[i] * v[j];
        o_t[j] += scale_of<double>(p) * q[i] * S[i * V + j];
      }
    }
  }
}

/// Fills o [B,T,H,V] and final_state [N,H,K,V] (also when the problem asks for none); 0 at tokens
/// outside every sequence. With `only`, nothing but those sequences and heads is computed and the
/// rest stays 0.
inline void gla_forward(const GlaForwardProblem& problem, std::vector<double>& o,
                        std::vector<double>& final_state,
                        const std::vector<SequenceHead>* only = nullptr) {
  o.assign(problem.B * problem.T * problem.H * problem.V, 0.0);
  final_state.assign(problem.N * problem.H * problem.K * problem.V, 0.0);
  if (only) {
    for (const auto [n, h] : *only) gla_forward_one(problem, n, h, o.data(), final_state.data());
    return;
  }
  for (std::int64_t n = 0; n < problem.N; ++n) {
    for (int h = 0; h < problem.H; ++h) {
      gla_forward_one(problem, n, h, o.data(), final_state.data());
    }
  }
}

}  // namespace tandem::reference
