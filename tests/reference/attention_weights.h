// The fp64 definition of attention_weights, by that of attention (reference/attention.h): what they
// have in common is in there.
#pragma once

#include <cstdint>
#include <vector>

#include "ops/attention_weights_problem.h"
#include "reference/attention.h"

namespace tandem::reference {

/// Reads a head's queries and keys. It has no values.
inline AttentionHead weights_head(const AttentionWeightsForwardProblem& p, std::int64_t b, int h) {
  AttentionForwardProblem problem;
  static_cast<AttentionSizes&>(problem) = p;
  problem.q = p.q;
  problem.k = p.k;
  return {problem, b, h};
}

/// Returns the weights of query i, [keys].
inline std::vector<double> weights_of(const AttentionHead& head, std::int64_t i) {
  std::vector<double> w = head.scores(i);
  const double log_sum_exp = AttentionHead::log_sum_exp(w);
  for (double& one : w) one = AttentionHead::weight(one, log_sum_exp);
  return w;
}

/// What goes through one query and head: adds its share of dq [K] and dk [keys,K], and to each of
/// `terms_dk` [keys] the squares of what it adds there, each difference as its two terms; returns
/// those of dq.
inline double add_weights_gradients(const AttentionWeightsBackwardProblem& problem,
                                    const AttentionHead& head, int h, std::int64_t i, double* dq,
                                    double* dk, double* terms_dk) {
  const AttentionWeightsForwardProblem& p = problem.forward;
  const std::vector<double> w = weights_of(head, i);
  const std::int64_t row = head.span.b * problem.d_w.batch_stride + i * problem.d_w.time_stride +
                           h * problem.d_w.head_stride;
  const int K = head.K;
  double mean = 0, terms = 0;
  for (std::size_t j = 0; j < w.size(); ++j) {
    if (w[j] != 0) mean += w[j] * element(p.dtype, problem.d_w.data, row + j);
  }
  for (std::size_t j = 0; j < w.size(); ++j) {
    if (w[j] == 0) continue;
    const double d_w = element(p.dtype, problem.d_w.data, row + j);
    const double weight = head.scale * w[j];
    const double *k = &head.k[j * K], *q = &head.q[i * K];
    for (int c = 0; c < K; ++c) {
      dq[c] += weight * (d_w - mean) * k[c];
      dk[j * K + c] += weight * (d_w - mean) * q[c];
    }
    const double size = weight * weight * (d_w * d_w + mean * mean);
    terms += size * dot(k, k, K);
    terms_dk[j] += size * dot(q, q, K);
  }
  return terms;
}

}  // namespace tandem::reference
