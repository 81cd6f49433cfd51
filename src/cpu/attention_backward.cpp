// attention's backward on the CPU, in two passes that compute the weights again: one over blocks of
// queries for dq, one over blocks of keys for dk and dv. Each block of a gradient is one thread's,
// summed in one order.
#include <algorithm>
#include <vector>

#include "cpu/attention_blocks.h"
#include "ops/attention.h"

namespace tandem::cpu {
namespace {

template <typename Real>
class AttentionBackward {
 public:
  AttentionBackward(const AttentionBackwardProblem& problem, MatmulProvider provider)
      : problem_(problem),
        p_(problem.forward),
        blocks_(problem.forward, provider),
        threads_(parallel_threads()) {}

  void run() {
    if (problem_.dq.data) clear_outside(p_, problem_.dq, false, p_.H, p_.K);
    if (problem_.dk.data) clear_outside(p_, problem_.dk, true, p_.HKV, p_.K);
    if (problem_.dv.data) clear_outside(p_, problem_.dv, true, p_.HKV, p_.V);
    for (int i = 0; i < threads_; ++i) scratch_.emplace_back(p_.K, p_.V);
    find_means();
    if (problem_.dq.data) {
      run_items(blocks_.query_items(), threads_,
                [&](const AttentionItem& item, int thread) { add_up_dq(item, scratch_[thread]); });
    }
    if (problem_.dk.data || problem_.dv.data) {
      run_items(blocks_.key_items(), threads_, [&](const AttentionItem& item, int thread) {
        add_up_dk_and_dv(item, scratch_[thread]);
      });
    }
  }

 private:
  struct Scratch {
    Scratch(int K, int V)
        : q(kQueryBlock * K),
          d_o(kQueryBlock * V),
          o(kQueryBlock * V),
          dq(kQueryBlock * K),
          k(kKeyBlock * K),
          v(kKeyBlock * V),
          dk(kKeyBlock * K),
          dv(kKeyBlock * V),
          weights(kQueryBlock * kKeyBlock),
          gradients(kQueryBlock * kKeyBlock) {}

    std::vector<Real> q, d_o, o, dq, k, v, dk, dv;
    std::vector<Real> weights, gradients;  // of a tile: p, and ds
    ScoreTile<Real> tile;
  };

  /// means_[B,H,TQ]: d_o . o - d_log_sum_exp, what the gradients of a query's weights lie around.
  void find_means() {
    means_.resize(p_.B * p_.H * p_.TQ);
    const Real* d_log_sum_exp = as<Real>(problem_.d_log_sum_exp);
    run_items(blocks_.query_items(), threads_, [&](const AttentionItem& item, int thread) {
      Scratch& s = scratch_[thread];
      blocks_.read_queries(p_.o, *item.span, item.head, item.rows, p_.V, s.o.data());
      blocks_.read_queries(problem_.d_o, *item.span, item.head, item.rows, p_.V, s.d_o.data());
      const std::int64_t first = blocks_.place(*item.span, item.head, item.rows.begin);
      for (std::int64_t i = 0; i < item.rows.size(); ++i) {
        Real& mean = means_[first + i];
        dot_rows({kRealType<Real>, s.o.data() + i * p_.V, p_.V}, s.d_o.data() + i * p_.V, p_.V, 1,
                 p_.V, &mean);
        if (d_log_sum_exp) mean -= d_log_sum_exp[first + i];
      }
    });
  }

  void read_block(const AttentionSpan& span, int hkv, Range keys, Scratch& s) const {
    blocks_.read_keys(p_.k, span, hkv, keys, p_.K, s.k.data());
    blocks_.read_keys(p_.v, span, hkv, keys, p_.V, s.v.data());
  }
  void read_query_block(const AttentionSpan& span, int head, Range queries, Scratch& s) const {
    blocks_.read_scaled_queries(span, head, queries, s.q.data());
    blocks_.read_queries(problem_.d_o, span, head, queries, p_.V, s.d_o.data());
  }

  /// Computes a tile's weights, and the gradients of its scores, of the blocks that are read.
  void make_tile(const AttentionSpan& span, int head, Range queries, Range keys, Scratch& s) const {
    const std::int64_t M = queries.size(), N = keys.size();
    blocks_.multiply_by_rows(M, N, p_.K, s.q.data(), s.k.data(), s.weights.data(), N);
    blocks_.multiply_by_rows(M, N, p_.V, s.d_o.data(), s.v.data(), s.gradients.data(), N);
    s.tile.scores = s.weights.data();
    see(span, queries, keys, s.tile);
    const std::int64_t first = blocks_.place(span, head, queries.begin);
    gradient_tile(s.tile, as<Real>(p_.log_sum_exp) + first, means_.data() + first,
                  s.gradients.data());
  }

  void add_up_dq(const AttentionItem& item, Scratch& s) const {
    const AttentionSpan& span = *item.span;
    const int hkv = item.head / (p_.H / p_.HKV);
    const std::int64_t rows = item.rows.size();
    std::fill_n(s.dq.begin(), rows * p_.K, Real{0});
    read_query_block(span, item.head, item.rows, s);
    for_each_block(span.keys_of(item.rows), kKeyBlock, [&](Range keys) {
      read_block(span, hkv, keys, s);
      make_tile(span, item.head, item.rows, keys, s);
      blocks_.multiply_by(rows, p_.K, keys.size(), s.gradients.data(), s.k.data(), s.dq.data(),
                          true);
    });
    blocks_.write_queries(s.dq.data(), span, item.head, item.rows, p_.K, scale_of<Real>(p_),
                          problem_.dq);
  }

  /// q is read times the scale, as dk wants it.
  void add_up_dk_and_dv(const AttentionItem& item, Scratch& s) const {
    const AttentionSpan& span = *item.span;
    const int share = p_.H / p_.HKV;
    const std::int64_t rows = item.rows.size();
    std::fill_n(s.dk.begin(), rows * p_.K, Real{0});
    std::fill_n(s.dv.begin(), rows * p_.V, Real{0});
    read_block(span, item.head, item.rows, s);
    for (int head = item.head * share; head < (item.head + 1) * share; ++head) {
      for_each_block(span.queries_of(item.rows), kQueryBlock, [&](Range queries) {
        read_query_block(span, head, queries, s);
        make_tile(span, head, queries, item.rows, s);
        blocks_.multiply_columns_by(rows, p_.K, queries.size(), s.gradients.data(), s.q.data(),
                                    s.dk.data(), true);
        blocks_.multiply_columns_by(rows, p_.V, queries.size(), s.weights.data(), s.d_o.data(),
                                    s.dv.data(), true);
      });
    }
    if (problem_.dk.data) {
      blocks_.write_keys(s.dk.data(), span, item.head, item.rows, p_.K, problem_.dk);
    }
    if (problem_.dv.data) {
      blocks_.write_keys(s.dv.data(), span, item.head, item.rows, p_.V, problem_.dv);
    }
  }

  const AttentionBackwardProblem& problem_;
  const AttentionForwardProblem& p_;
  AttentionBlocks<Real> blocks_;
  int threads_;
  std::vector<Scratch> scratch_;
  std::vector<Real> means_;
};

}  // namespace

void attention_backward(const AttentionBackwardProblem& problem, const CallOptions& options) {
  check_attention_lengths("attention_backward", problem.forward);
  const MatmulProvider provider = matmul_provider(options);
  isa();  // throws before anything is written
  run_with_real(problem.forward.dtype,
                [&]<typename Real>() { AttentionBackward<Real>(problem, provider).run(); });
}

}  // namespace tandem::cpu
