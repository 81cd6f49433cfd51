// attention's outputs against the fp64 definition.
#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "cli/calls/arguments.h"
#include "cli/calls/judge.h"
#include "cli/ops/attention.h"
#include "reference/attention.h"

namespace tandem::tools {
namespace {

constexpr double kNothing = -std::numeric_limits<double>::infinity();

/// One sequence and head, and what the definition gives for some of its queries.
struct Head {
  std::int64_t n;
  int h;
  reference::AttentionSpan span{};
  std::vector<std::int64_t> queries = {};  // from the sequence's first one on
  std::vector<double> o = {};              // [queries,V]
  std::vector<double> log_sum_exp = {};    // [queries]
};

class AttentionExpectation : public Expectation {
 public:
  AttentionExpectation(const TensorSet& set, bool sampled)
      : p_(make_problem(host_arguments<AttentionForwardArgs>(attention_forward_signature(), set))) {
    constexpr std::int64_t kHeads = 8, kMost = std::numeric_limits<std::int64_t>::max();
    for (const std::int64_t i : spread(p_.N * p_.H, sampled ? kHeads : kMost)) {
      heads_.push_back({i / p_.H, static_cast<int>(i % p_.H)});
    }
    const std::int64_t count = std::ssize(heads_);
#pragma omp parallel for schedule(dynamic)
    for (std::int64_t i = 0; i < count; ++i) define(heads_[i], sampled);
  }

  std::vector<OutputError> compare(const TensorSet& set, const Buffers& after) const override {
    const double limit = attention_limit(p_.dtype);
    std::vector<OutputError> errors = {judge("o", compare_o(set.get("o"), after), limit)};
    if (const NamedTensor* log_sum_exp = set.find("log_sum_exp")) {
      errors.push_back(
          judge("log_sum_exp", compare_log_sum_exp(*log_sum_exp, after), std::min(limit, 1e-5)));
    }
    return errors;
  }

 private:
  /// With `sampled`, of as many queries as a moment's work is.
  void define(Head& head, bool sampled) const {
    const reference::AttentionHead defined(p_, head.n, head.h);
    head.span = defined.span;
    const std::int64_t queries = head.span.queries();
    const std::int64_t cost = (head.span.keys() + 1) * (p_.K + p_.V);
    constexpr std::int64_t kFewest = 8, kCost = 60'000'000;
    head.queries = spread(queries, sampled ? std::max(kFewest, kCost / cost) : queries);
    for (const std::int64_t i : head.queries) {
      head.log_sum_exp.push_back(defined.log_sum_exp(i));
      const std::vector<double> o = defined.output(i, head.log_sum_exp.back());
      head.o.insert(head.o.end(), o.begin(), o.end());
    }
  }

  std::vector<Squares> compare_o(const NamedTensor& o, const Buffers& after) const {
    const std::byte* data = after[o.buffer].data() + o.offset;
    const auto add = [&](Squares& squares, std::int64_t b, std::int64_t t, int h,
                         const double* expected) {
      const std::int64_t row = b * o.strides[0] + t * o.strides[1] + h * o.strides[2];
      for (int c = 0; c < p_.V; ++c) {
        squares.add(load(o.dtype, data, row + c), expected ? expected[c] : 0);
      }
    };
    std::vector<Squares> all(1);
    for (const auto& [b, t] : tokens_outside(p_, false)) {
      for (int h = 0; h < p_.H; ++h) add(all[0], b, t, h, nullptr);
    }
    for (const Head& head : heads_) {
      Squares& squares = all.emplace_back();
      for (std::size_t i = 0; i < head.queries.size(); ++i) {
        add(squares, head.span.b, head.span.q_begin + head.queries[i], head.h, &head.o[i * p_.V]);
      }
    }
    return all;
  }

  std::vector<Squares> compare_log_sum_exp(const NamedTensor& x, const Buffers& after) const {
    const std::byte* data = after[x.buffer].data() + x.offset;
    const auto add = [&](Squares& squares, std::int64_t b, int h, std::int64_t t, double expected) {
      const double value = load(x.dtype, data, (b * p_.H + h) * p_.TQ + t);
      const bool right = value == kNothing && expected == kNothing;
      squares.add(right ? 0 : value, right ? 0 : expected);
    };
    std::vector<Squares> all(1);
    for (const auto& [b, t] : tokens_outside(p_, false)) {
      for (int h = 0; h < p_.H; ++h) add(all[0], b, h, t, kNothing);
    }
    for (const Head& head : heads_) {
      Squares& squares = all.emplace_back();
      for (std::size_t i = 0; i < head.queries.size(); ++i) {
        add(squares, head.span.b, head.h, head.span.q_begin + head.queries[i], head.log_sum_exp[i]);
      }
    }
    return all;
  }

  AttentionForwardProblem p_;
  std::vector<Head> heads_;
};

}  // namespace

std::unique_ptr<Expectation> expect_attention(const TensorSet& set, bool sampled) {
  return std::make_unique<AttentionExpectation>(set, sampled);
}

}  // namespace tandem::tools
