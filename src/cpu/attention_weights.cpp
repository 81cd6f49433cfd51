// attention_weights on the CPU: whole rows of scores, as many at a time as fit a cache, and their
// softmax. The backward makes the scores' gradients of weights as they lie in memory: once by
// queries, for dq, once by keys, for dk.
#include <algorithm>
#include <limits>
#include <string>
#include <vector>

#include "cpu/attention_blocks.h"
#include "ops/attention_weights.h"

namespace tandem::cpu {
namespace {

/// Queries whose scores are made at a time, of so many keys.
std::int64_t rows_at_once(std::int64_t keys) {
  constexpr std::int64_t kFewest = 8, kScores = 1 << 18;
  return std::clamp(kScores / std::max<std::int64_t>(keys, 1), kFewest, kQueryBlock);
}

AttentionForwardProblem queries_and_keys(const AttentionWeightsForwardProblem& p) {
  AttentionForwardProblem problem;
  static_cast<AttentionSizes&>(problem) = p;
  problem.q = p.q;
  problem.k = p.k;
  return problem;
}

/// Weights, or their gradients, of some queries of one head and all keys from `key` on.
Rows rows_of(const AttentionSizes& p, const StridedTensor& w, const AttentionSpan& span, int head,
             std::int64_t query, std::int64_t key) {
  const std::int64_t first =
      span.b * w.batch_stride + query * w.time_stride + head * w.head_stride + key;
  return {p.dtype, element_at(p.dtype, w.data, first), w.time_stride};
}

template <typename Real>
class WeightsForward {
 public:
  WeightsForward(const AttentionWeightsForwardProblem& problem, MatmulProvider provider)
      : p_(problem), inputs_(queries_and_keys(problem)), blocks_(inputs_, provider) {}

  void run() {
    const int threads = parallel_threads();
    const std::int64_t rows = rows_at_once(p_.TK);
    std::vector<Scratch> scratch;
    for (int i = 0; i < threads; ++i) scratch.emplace_back(rows, p_.TK, p_.K);
    run_items(blocks_.query_items(rows), threads,
              [&](const AttentionItem& item, int thread) { run_rows(item, scratch[thread]); });
  }

 private:
  struct Scratch {
    Scratch(std::int64_t rows, std::int64_t TK, int K)
        : q(rows * K), k(kKeyBlock * K), scores(rows * TK), softmax(rows), factors(rows) {}

    std::vector<Real> q, k, scores;
    std::vector<SoftmaxRow<Real>> softmax;
    std::vector<Real> factors;
    ScoreTile<Real> tile;
  };

  void run_rows(const AttentionItem& item, Scratch& s) const {
    const AttentionSpan& span = *item.span;
    const int hkv = item.head / (p_.H / p_.HKV);
    const std::int64_t rows = item.rows.size();
    blocks_.read_scaled_queries(span, item.head, item.rows, s.q.data());
    for_each_block(span.keys_of(item.rows), kKeyBlock, [&](Range keys) {
      blocks_.read_keys(p_.k, span, hkv, keys, p_.K, s.k.data());
      blocks_.multiply_by_rows(rows, keys.size(), p_.K, s.q.data(), s.k.data(),
                               s.scores.data() + keys.begin, p_.TK);
    });
    s.tile.scores = s.scores.data();
    see(span, item.rows, span.k, s.tile);
    constexpr Real kNothing = -std::numeric_limits<Real>::infinity();
    std::fill_n(s.softmax.begin(), rows, SoftmaxRow<Real>{kNothing, 0});
    softmax_tile(s.tile, s.softmax.data(), s.factors.data());
    for (std::int64_t i = 0; i < rows; ++i) {
      const Real sum = s.softmax[i].sum;
      rows_from_float(s.scores.data() + i * p_.TK, p_.TK, 1, p_.TK, sum == 0 ? Real{1} : 1 / sum,
                      rows_of(p_, p_.w, span, item.head, item.rows.begin + i, 0));
    }
  }

  const AttentionWeightsForwardProblem& p_;
  AttentionForwardProblem inputs_;
  AttentionBlocks<Real> blocks_;
};

template <typename Real>
class WeightsBackward {
 public:
  WeightsBackward(const AttentionWeightsBackwardProblem& problem, MatmulProvider provider)
      : problem_(problem),
        p_(problem.forward),
        inputs_(queries_and_keys(problem.forward)),
        blocks_(inputs_, provider),
        threads_(parallel_threads()),
        means_(p_.B * p_.H * p_.TQ) {
    for (int i = 0; i < threads_; ++i) scratch_.emplace_back(p_.K);
  }

  void run() {
    run_items(blocks_.query_items(), threads_,
              [&](const AttentionItem& item, int thread) { find_means(item, scratch_[thread]); });
    if (problem_.dq.data) {
      run_items(blocks_.query_items(), threads_,
                [&](const AttentionItem& item, int thread) { add_up_dq(item, scratch_[thread]); });
    }
    if (problem_.dk.data) {
      run_items(blocks_.key_items(), threads_,
                [&](const AttentionItem& item, int thread) { add_up_dk(item, scratch_[thread]); });
    }
  }

 private:
  struct Scratch {
    explicit Scratch(int K)
        : q(kQueryBlock * K),
          k(kKeyBlock * K),
          sum(std::max(kQueryBlock, kKeyBlock) * K),
          weights(kQueryBlock * kKeyBlock),
          gradients(kQueryBlock * kKeyBlock) {}

    std::vector<Real> q, k, sum;
    std::vector<Real> weights, gradients;  // of a tile: w, and d_w or ds
    ScoreTile<Real> tile;
  };

  /// Reads a tile of weights and of their gradients; both are 0 where a query does not see a key.
  void read_tile(const AttentionSpan& span, int head, Range queries, Range keys, Scratch& s) const {
    see(span, queries, keys, s.tile);
    const std::int64_t columns = keys.size();
    for (std::int64_t i = 0; i < queries.size(); ++i) {
      const auto [begin, end] = s.tile.seen[i];
      const auto read = [&](const StridedTensor& x, std::vector<Real>& to) {
        Real* row = to.data() + i * columns;
        const Rows from = rows_of(p_, x, span, head, queries.begin + i, keys.begin + begin);
        std::fill(row, row + begin, Real{0});
        rows_to_float({from.dtype, from.data, from.stride}, 1, end - begin, row + begin, columns);
        std::fill(row + end, row + columns, Real{0});
      };
      read(p_.w, s.weights);
      read(problem_.d_w, s.gradients);
    }
  }

  /// means_[B,H,TQ]: what the gradients of a query's weights lie around.
  void find_means(const AttentionItem& item, Scratch& s) {
    const AttentionSpan& span = *item.span;
    Real* means = means_.data() + blocks_.place(span, item.head, item.rows.begin);
    for_each_block(span.keys_of(item.rows), kKeyBlock, [&](Range keys) {
      read_tile(span, item.head, item.rows, keys, s);
      for (std::int64_t i = 0; i < item.rows.size(); ++i) {
        const std::int64_t columns = keys.size();
        Real sum = 0;
        dot_rows({kRealType<Real>, s.weights.data() + i * columns, columns},
                 s.gradients.data() + i * columns, columns, 1, columns, &sum);
        means[i] += sum;
      }
    });
  }

  /// Turns the gradients of a tile's weights into those of its scores.
  void make_tile(const AttentionSpan& span, int head, Range queries, Range keys, Scratch& s) const {
    read_tile(span, head, queries, keys, s);
    const Real* means = means_.data() + blocks_.place(span, head, queries.begin);
    for (std::int64_t i = 0; i < queries.size(); ++i) {
      const Real mean = means[i];
      const Real* w = s.weights.data() + i * keys.size();
      Real* d = s.gradients.data() + i * keys.size();
      const auto [begin, end] = s.tile.seen[i];
      for (std::int64_t j = begin; j < end; ++j) d[j] = w[j] * (d[j] - mean);
    }
  }

  void add_up_dq(const AttentionItem& item, Scratch& s) const {
    const AttentionSpan& span = *item.span;
    const int hkv = item.head / (p_.H / p_.HKV);
    const std::int64_t rows = item.rows.size();
    std::fill_n(s.sum.begin(), rows * p_.K, Real{0});
    for_each_block(span.keys_of(item.rows), kKeyBlock, [&](Range keys) {
      make_tile(span, item.head, item.rows, keys, s);
      blocks_.read_keys(p_.k, span, hkv, keys, p_.K, s.k.data());
      blocks_.multiply_by(rows, p_.K, keys.size(), s.gradients.data(), s.k.data(), s.sum.data(),
                          true);
    });
    blocks_.write_queries(s.sum.data(), span, item.head, item.rows, p_.K, scale_of<Real>(p_),
                          problem_.dq);
  }

  /// q is read times the scale, as dk wants it.
  void add_up_dk(const AttentionItem& item, Scratch& s) const {
    const AttentionSpan& span = *item.span;
    const int share = p_.H / p_.HKV;
    const std::int64_t rows = item.rows.size();
    std::fill_n(s.sum.begin(), rows * p_.K, Real{0});
    for (int head = item.head * share; head < (item.head + 1) * share; ++head) {
      for_each_block(span.queries_of(item.rows), kQueryBlock, [&](Range queries) {
        make_tile(span, head, queries, item.rows, s);
        blocks_.read_scaled_queries(span, head, queries, s.q.data());
        blocks_.multiply_columns_by(rows, p_.K, queries.size(), s.gradients.data(), s.q.data(),
                                    s.sum.data(), true);
      });
    }
    blocks_.write_keys(s.sum.data(), span, item.head, item.rows, p_.K, problem_.dk);
  }

  const AttentionWeightsBackwardProblem& problem_;
  const AttentionWeightsForwardProblem& p_;
  AttentionForwardProblem inputs_;
  AttentionBlocks<Real> blocks_;
  int threads_;
  std::vector<Scratch> scratch_;
  std::vector<Real> means_;
};

}  // namespace

void attention_weights_forward(const AttentionWeightsForwardProblem& problem,
                               const CallOptions& options) {
  const MatmulProvider provider = matmul_provider(options);
  isa();  // throws before anything is written
  run_with_real(problem.dtype,
                [&]<typename Real>() { WeightsForward<Real>(problem, provider).run(); });
}

void attention_weights_backward(const AttentionWeightsBackwardProblem& problem,
                                const CallOptions& options) {
  const MatmulProvider provider = matmul_provider(options);
  isa();  // throws before anything is written
  run_with_real(problem.forward.dtype,
                [&]<typename Real>() { WeightsBackward<Real>(problem, provider).run(); });
}

std::vector<VariantInfo> attention_weights_variants() {
  const std::string onednn = matmul_unavailable_reason(MatmulProvider::kOneDnn);
  return {{"attention_weights", "attention_weights_forward.cpu.onednn", onednn},
          {"attention_weights", "attention_weights_forward.cpu.builtin", ""},
          {"attention_weights", "attention_weights_backward.cpu.onednn", onednn},
          {"attention_weights", "attention_weights_backward.cpu.builtin", ""}};
}

}  // namespace tandem::cpu
