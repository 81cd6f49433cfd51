// attention on the CPU: a block of queries against one block of keys after the other, by an online
// softmax. Scores, weights and sums are fp32, and so are both products.
#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "cpu/attention_blocks.h"
#include "cpu/decay.h"
#include "ops/attention.h"

namespace tandem::cpu {
namespace {

template <typename Real>
constexpr Real kNothing = -std::numeric_limits<Real>::infinity();

template <typename Real>
class AttentionForward {
 public:
  AttentionForward(const AttentionForwardProblem& problem, MatmulProvider provider)
      : p_(problem), blocks_(problem, provider) {}

  void run() {
    clear_outside(p_, p_.o, false, p_.H, p_.V);
    if (p_.log_sum_exp && p_.cu_seqlens_q) {
      Real* log_sum_exp = as<Real>(p_.log_sum_exp);
      std::fill(log_sum_exp, log_sum_exp + p_.B * p_.H * p_.TQ, kNothing<Real>);
    }
    const int threads = parallel_threads();
    std::vector<Scratch> scratch;
    for (int i = 0; i < threads; ++i) scratch.emplace_back(p_.K, p_.V);
    run_items(blocks_.query_items(), threads,
              [&](const AttentionItem& item, int thread) { run_block(item, scratch[thread]); });
  }

 private:
  struct Scratch {
    Scratch(int K, int V)
        : q(kQueryBlock * K),
          o(kQueryBlock * V),
          k(kKeyBlock * K),
          v(kKeyBlock * V),
          scores(kQueryBlock * kKeyBlock),
          softmax(kQueryBlock),
          factors(kQueryBlock) {}

    std::vector<Real> q, o, k, v, scores;
    std::vector<SoftmaxRow<Real>> softmax;
    std::vector<Real> factors;
    ScoreTile<Real> tile;
  };

  void run_block(const AttentionItem& item, Scratch& s) const {
    const AttentionSpan& span = *item.span;
    const int hkv = item.head / (p_.H / p_.HKV);
    const std::int64_t rows = item.rows.size();
    blocks_.read_scaled_queries(span, item.head, item.rows, s.q.data());
    std::fill_n(s.softmax.begin(), rows, SoftmaxRow<Real>{kNothing<Real>, 0});
    bool first = true;
    for_each_block(span.keys_of(item.rows), kKeyBlock, [&](Range keys) {
      blocks_.read_keys(p_.k, span, hkv, keys, p_.K, s.k.data());
      blocks_.read_keys(p_.v, span, hkv, keys, p_.V, s.v.data());
      blocks_.multiply_by_rows(rows, keys.size(), p_.K, s.q.data(), s.k.data(), s.scores.data(),
                               keys.size());
      s.tile.scores = s.scores.data();
      see(span, item.rows, keys, s.tile);
      softmax_tile(s.tile, s.softmax.data(), s.factors.data());
      if (!first) scale_rows(s.factors.data(), static_cast<int>(rows), p_.V, s.o.data());
      blocks_.multiply_by(rows, p_.V, keys.size(), s.scores.data(), s.v.data(), s.o.data(), !first);
      first = false;
    });
    for (std::int64_t i = 0; i < rows; ++i) write_row(item, i, s);
  }

  void write_row(const AttentionItem& item, std::int64_t i, Scratch& s) const {
    const auto [most, sum] = s.softmax[i];
    const std::int64_t query = item.rows.begin + i;
    Real* o = s.o.data() + i * p_.V;
    // A query that sees nothing has no weights; a key that it does not see may be NaN in o.
    if (sum == 0) std::fill_n(o, p_.V, Real{0});
    blocks_.write_queries(o, *item.span, item.head, {query, query + 1}, p_.V,
                          sum == 0 ? Real{1} : 1 / sum, p_.o);
    if (!p_.log_sum_exp) return;
    as<Real>(p_.log_sum_exp)[blocks_.place(*item.span, item.head, query)] =
        sum == 0 ? kNothing<Real> : most + std::log(sum);
  }

  const AttentionForwardProblem& p_;
  AttentionBlocks<Real> blocks_;
};

}  // namespace

void attention_forward(const AttentionForwardProblem& problem, const CallOptions& options) {
  check_attention_lengths("attention_forward", problem);
  const MatmulProvider provider = matmul_provider(options);
  isa();  // throws before anything is written
  run_with_real(problem.dtype,
                [&]<typename Real>() { AttentionForward<Real>(problem, provider).run(); });
}

std::vector<VariantInfo> attention_variants() {
  const std::string onednn = matmul_unavailable_reason(MatmulProvider::kOneDnn);
  return {{"attention", "attention_forward.cpu.onednn", onednn},
          {"attention", "attention_forward.cpu.builtin", ""},
          {"attention", "attention_backward.cpu.onednn", onednn},
          {"attention", "attention_backward.cpu.builtin", ""}};
}

}  // namespace tandem::cpu
