// The fp64 definition of attention: each query against each key that it sees, as plain as the
// formula. Tests trust it; nothing else should use it, it is slow. Shares no code with the backends
// but the exact conversions.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "ops/attention_problem.h"
#include "reference/element.h"

namespace tandem::reference {

/// The queries and keys of one sequence: [begin,end) of rows of batch b.
struct AttentionSpan {
  std::int64_t b, q_begin, q_end, k_begin, k_end;

  std::int64_t queries() const { return q_end - q_begin; }
  std::int64_t keys() const { return k_end - k_begin; }
};

inline AttentionSpan attention_span(const AttentionSizes& p, std::int64_t n) {
  const auto clamped = [](std::int64_t value, std::int64_t most) {
    return std::clamp<std::int64_t>(value, 0, most);
  };
  if (p.cu_seqlens_q) {
    const std::int32_t *q = p.cu_seqlens_q, *k = p.cu_seqlens_k;
    return {0, clamped(q[n], p.TQ), clamped(q[n + 1], p.TQ), clamped(k[n], p.TK),
            clamped(k[n + 1], p.TK)};
  }
  return {n, 0, p.TQ, 0, p.lengths_k ? clamped(p.lengths_k[n], p.TK) : p.TK};
}

/// Whether query i of a span sees its key j.
inline bool sees(const AttentionMask& mask, const AttentionSpan& span, std::int64_t i,
                 std::int64_t j) {
  const std::int64_t place = i + span.keys() - span.queries();
  if (mask.left != AttentionMask::kUnlimited && j < place - mask.left) return false;
  return mask.right == AttentionMask::kUnlimited || j <= place + mask.right;
}

/// Reads rows [begin,end) of one head of a [B,T,heads,dim] tensor as [rows,dim].
inline std::vector<double> read_head(DType dtype, const StridedTensor& x, std::int64_t b,
                                     std::int64_t begin, std::int64_t end, int head, int dim) {
  std::vector<double> values((end - begin) * dim);
  for (std::int64_t t = begin; t < end; ++t) {
    const std::int64_t row = b * x.batch_stride + t * x.time_stride + head * x.head_stride;
    for (int i = 0; i < dim; ++i) {
      values[(t - begin) * dim + i] = element(dtype, x.data, row + i);
    }
  }
  return values;
}

inline double dot(const double* a, const double* b, int size) {
  double sum = 0;
  for (int i = 0; i < size; ++i) sum += a[i] * b[i];
  return sum;
}

/// One sequence and head of a call, its inputs read, query by query.
struct AttentionHead {
  AttentionHead(const AttentionForwardProblem& p, std::int64_t n, int h)
      : span(attention_span(p, n)), K(p.K), V(p.V), scale(scale_of<double>(p)), mask(p.mask) {
    const int hkv = h / (p.H / p.HKV);
    q = read_head(p.dtype, p.q, span.b, span.q_begin, span.q_end, h, K);
    k = read_head(p.dtype, p.k, span.b, span.k_begin, span.k_end, hkv, K);
    v = read_head(p.dtype, p.v, span.b, span.k_begin, span.k_end, hkv, V);
  }

  /// -inf where query i does not see key j.
  double score(std::int64_t i, std::int64_t j) const {
    if (!sees(mask, span, i, j)) return -std::numeric_limits<double>::infinity();
    return scale * dot(&q[i * K], &k[j * K], K);
  }

  /// Those of query i, [keys].
  std::vector<double> scores(std::int64_t i) const {
    std::vector<double> s(span.keys());
    for (std::int64_t j = 0; j < span.keys(); ++j) s[j] = score(i, j);
    return s;
  }

  /// -inf without a score that is not.
  static double log_sum_exp(const std::vector<double>& s) {
    constexpr double kNothing = -std::numeric_limits<double>::infinity();
    const double most = s.empty() ? kNothing : *std::max_element(s.begin(), s.end());
    if (most == kNothing) return kNothing;
    double sum = 0;
    for (const double one : s) sum += std::exp(one - most);
    return most + std::log(sum);
  }
  double log_sum_exp(std::int64_t i) const { return log_sum_exp(scores(i)); }

  /// 0 where query i does not see key j; `log_sum_exp` is the query's.
  static double weight(double score, double log_sum_exp) {
    return std::isinf(score) ? 0.0 : std::exp(score - log_sum_exp);
  }
  double weight(std::int64_t i, std::int64_t j, double log_sum_exp) const {
    return weight(score(i, j), log_sum_exp);
  }

  /// Returns o of query i, [V].
  std::vector<double> output(std::int64_t i, double log_sum_exp) const {
    std::vector<double> o(V);
    for (std::int64_t j = 0; j < span.keys(); ++j) {
      const double p = weight(i, j, log_sum_exp);
      for (int c = 0; c < V && p != 0; ++c) o[c] += p * v[j * V + c];
    }
    return o;
  }

  AttentionSpan span;
  int K, V;
  double scale;
  AttentionMask mask;
  std::vector<double> q, k, v;  // [queries,K], [keys,K], [keys,V]
};

/// The gradients through one sequence and head.
struct AttentionHeadBackward : AttentionHead {
  AttentionHeadBackward(const AttentionBackwardProblem& problem, std::int64_t n, int h)
      : AttentionHead(problem.forward, n, h) {
    const AttentionForwardProblem& p = problem.forward;
    d_o = read_head(p.dtype, problem.d_o, span.b, span.q_begin, span.q_end, h, V);
    d_log_sum_exp.resize(span.queries());
    for (std::int64_t i = 0; i < span.queries() && problem.d_log_sum_exp; ++i) {
      const std::int64_t at = (span.b * p.H + h) * p.TQ + span.q_begin + i;
      d_log_sum_exp[i] = real(p.dtype, problem.d_log_sum_exp, at);
    }
  }

  /// The gradient by a weight, and what of a query's is taken off all of them: that by a score is
  /// weight (by_weight - mean).
  double by_weight(std::int64_t i, std::int64_t j) const { return dot(&d_o[i * V], &v[j * V], V); }
  double mean(std::int64_t i, const double* o) const {
    return dot(&d_o[i * V], o, V) - d_log_sum_exp[i];
  }

  /// Adds the gradient by query i, [K], whose outputs are these. Returns the squares of what is
  /// summed, each difference as its two terms: rounding errors are measured by those.
  double add_dq(std::int64_t i, double log_sum_exp, const double* o, double* dq) const {
    const double off = mean(i, o);
    double terms = 0;
    for (std::int64_t j = 0; j < span.keys(); ++j) {
      terms += add(i, j, scale * weight(i, j, log_sum_exp), off, &k[j * K], dq);
    }
    return terms;
  }

  /// Adds the gradients by key j and its value, [K] and [V], through all queries, whose outputs are
  /// these: [queries] and [queries,V]. Returns what add_dq does, of dk.
  double add_dk_and_dv(std::int64_t j, const std::vector<double>& log_sum_exp,
                       const std::vector<double>& o, double* dk, double* dv) const {
    double terms = 0;
    for (std::int64_t i = 0; i < span.queries(); ++i) {
      const double p = weight(i, j, log_sum_exp[i]);
      for (int c = 0; c < V && p != 0; ++c) dv[c] += p * d_o[i * V + c];
      terms += add(i, j, scale * p, mean(i, &o[i * V]), &q[i * K], dk);
    }
    return terms;
  }

 private:
  /// sum [K] += the gradient by the score of query i and key j times x [K]; p is the scaled weight.
  double add(std::int64_t i, std::int64_t j, double p, double mean, const double* x,
             double* sum) const {
    if (p == 0) return 0;
    const double d = by_weight(i, j);
    for (int c = 0; c < K; ++c) sum[c] += p * (d - mean) * x[c];
    return p * p * (d * d + mean * mean) * dot(x, x, K);
  }

  std::vector<double> d_o;            // [queries,V]
  std::vector<double> d_log_sum_exp;  // [queries]
};

}  // namespace tandem::reference
