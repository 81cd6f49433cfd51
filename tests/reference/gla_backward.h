// The fp64 definition of gla's backward: the recurrence of reference/gla.h differentiated by hand,
// one token at a time, as plain as the formula. Tests trust it, because
// tests/cpp/test_gla_backward_definition.cpp holds it against finite differences of the forward.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

#include "reference/gla.h"

namespace tandem::reference {

/// Gradients of one sequence and head, over its own tokens.
struct GlaHeadGradients {
  std::vector<double> dq, dk;   // [tokens,K], of this head alone
  std::vector<double> dv;       // [tokens,V]
  std::vector<double> dg;       // [tokens]
  std::vector<double> d_state;  // [K,V], by the initial state
  double q_dq = 0;  // sum over tokens of (q . dq)^2: the size of the terms whose difference dg is
};

/// Computes the gradients of one sequence and head.
inline GlaHeadGradients gla_backward_one(const GlaBackwardProblem& problem, std::int64_t n, int h) {
  const GlaForwardProblem& p = problem.forward;
  const std::int64_t b = p.cu_seqlens ? 0 : n;
  const auto boundary = [&](std::int64_t i) {
    return std::clamp<std::int64_t>(p.cu_seqlens[i], 0, p.T);
  };
  const std::int64_t begin = p.cu_seqlens ? boundary(n) : 0;
  const std::int64_t end = std::max(begin, p.cu_seqlens ? boundary(n + 1) : p.T);
  const std::int64_t T = end - begin;
  const int hq = h / (p.H / p.HQ);
  const int K = p.K, V = p.V;

  const auto read = [&](const StridedTensor& x, int head, int dim) {
    std::vector<double> rows(T * dim);
    for (std::int64_t t = 0; t < T; ++t) {
      const std::int64_t at =
          b * x.batch_stride + (begin + t) * x.time_stride + head * x.head_stride;
      for (int i = 0; i < dim; ++i) rows[t * dim + i] = element(p.dtype, x.data, at + i);
    }
    return rows;
  };
  const std::vector<double> q = read(p.q, hq, K), k = read(p.k, hq, K), v = read(p.v, h, V);
  const std::vector<double> d_o = read(problem.d_o, h, V);
  std::vector<double> decay(T, 1.0);
  for (std::int64_t t = 0; p.log_decay.data && t < T; ++t) {
    const DecayTensor& g = p.log_decay;
    decay[t] = std::exp(real(p.dtype, g.data,
                             b * g.batch_stride + (begin + t) * g.time_stride + h * g.head_stride));
  }

  // S[i] is the state before token first + i. why blocks: all states at once would be gigabytes, so
  // one per block is kept and the others are computed again.
  constexpr std::int64_t kBlock = 64;
  const std::int64_t size = static_cast<std::int64_t>(K) * V, head = (n * p.H + h) * size;
  std::vector<double> starts((T / kBlock + 1) * size), S((kBlock + 1) * size);
  const auto fill_states = [&](std::int64_t first, std::int64_t last) {
    std::copy_n(&starts[first / kBlock * size], size, S.data());
    for (std::int64_t t = first; t < last; ++t) {
      const double *before = &S[(t - first) * size], *k_t = &k[t * K], *v_t = &v[t * V];
      double* after = &S[(t - first + 1) * size];
      for (int i = 0; i < K; ++i) {
        for (int j = 0; j < V; ++j) {
          const double kept = decay[t] == 0 ? 0 : decay[t] * before[i * V + j];
          after[i * V + j] = kept + k_t[i] * v_t[j];
        }
      }
    }
  };
  for (std::int64_t i = 0; i < size; ++i) {
    starts[i] = p.initial_state ? real(p.dtype, p.initial_state, head + i) : 0.0;
  }
  for (std::int64_t first = 0; first + kBlock <= T; first += kBlock) {
    fill_states(first, first + kBlock);
    std::copy_n(&S[kBlock * size], size, &starts[(first / kBlock + 1) * size]);
  }

  GlaHeadGradients out{std::vector<double>(T * K), std::vector<double>(T * K),
                       std::vector<double>(T * V), std::vector<double>(T),
                       std::vector<double>(size),  0};
  std::vector<double>& dS = out.d_state;
  for (std::int64_t i = 0; i < size; ++i) {
    dS[i] = problem.d_final_state ? real(p.dtype, problem.d_final_state, head + i) : 0.0;
  }
  for (std::int64_t t = T - 1; t >= 0; --t) {
    const std::int64_t first = t / kBlock * kBlock;
    if (t == T - 1 || t % kBlock == kBlock - 1) fill_states(first, t + 1);
    const double *d_o_t = &d_o[t * V], *v_t = &v[t * V];
    double *dv_t = &out.dv[t * V], q_dq = 0;
    for (int i = 0; i < K; ++i) {
      const double *before = &S[(t - first) * size + i * V], *after = before + size;
      const double q_ti = scale_of<double>(p) * q[t * K + i], k_ti = k[t * K + i], kept = decay[t];
      double *d = &dS[i * V], dq = 0, dk = 0, dg = 0;
      for (int j = 0; j < V; ++j) {
        d[j] += q_ti * d_o_t[j];
        dq += scale_of<double>(p) * after[j] * d_o_t[j];
        dk += d[j] * v_t[j];
        dv_t[j] += d[j] * k_ti;
        dg += before[j] * d[j];
        d[j] = kept == 0 ? 0 : kept * d[j];
      }
      out.dq[t * K + i] = dq;
      out.dk[t * K + i] = dk;
      if (kept != 0) out.dg[t] += kept * dg;  // a reset forgets, whatever the state held
      q_dq += q[t * K + i] * dq;
    }
    out.q_dq += q_dq * q_dq;
  }
  return out;
}

}  // namespace tandem::reference
