// attention_weights' outputs and gradients against the fp64 definition.
#include <algorithm>
#include <limits>
#include <vector>

#include "cli/calls/arguments.h"
#include "cli/calls/judge.h"
#include "cli/ops/attention.h"
#include "cli/ops/attention_weights.h"
#include "reference/attention_weights.h"

namespace tandem::tools {
namespace {

constexpr std::int64_t kMost = std::numeric_limits<std::int64_t>::max();

class WeightsExpectation : public Expectation {
 public:
  WeightsExpectation(const TensorSet& set, bool sampled)
      : p_(make_problem(host_arguments<AttentionWeightsForwardArgs>(
            attention_weights_forward_signature(), set))) {
    constexpr std::int64_t kHeads = 8;
    for (const std::int64_t i : spread(p_.B * p_.H, sampled ? kHeads : kMost)) {
      heads_.push_back({i / p_.H, static_cast<int>(i % p_.H), {}, {}});
    }
    const std::int64_t count = std::ssize(heads_);
#pragma omp parallel for schedule(dynamic)
    for (std::int64_t i = 0; i < count; ++i) define(heads_[i], sampled);
  }

  std::vector<OutputError> compare(const TensorSet& set, const Buffers& after) const override {
    const NamedTensor& w = set.get("w");
    const std::byte* data = after[w.buffer].data() + w.offset;
    std::vector<Squares> all;
    for (const Head& head : heads_) {
      Squares& squares = all.emplace_back();
      for (std::size_t i = 0; i < head.queries.size(); ++i) {
        const std::int64_t row =
            head.b * w.strides[0] + head.h * w.strides[1] + head.queries[i] * w.strides[2];
        for (std::int64_t j = 0; j < p_.TK; ++j) {
          squares.add(load(w.dtype, data, row + j), head.weights[i][j]);
        }
      }
    }
    return {judge("w", all, attention_limit(p_.dtype))};
  }

 private:
  /// One head of one batch row, and the weights of some of its queries.
  struct Head {
    std::int64_t b;
    int h;
    std::vector<std::int64_t> queries;
    std::vector<std::vector<double>> weights;
  };

  void define(Head& head, bool sampled) const {
    const reference::AttentionHead defined = reference::weights_head(p_, head.b, head.h);
    constexpr std::int64_t kFewest = 8, kCost = 60'000'000;
    const std::int64_t affordable = std::max(kFewest, kCost / ((p_.TK + 1) * p_.K));
    head.queries = spread(p_.TQ, sampled ? affordable : kMost);
    for (const std::int64_t i : head.queries) {
      head.weights.push_back(reference::weights_of(defined, i));
    }
  }

  AttentionWeightsForwardProblem p_;
  std::vector<Head> heads_;
};

/// One key head of one batch row: the gradients of its queries and keys.
struct Group {
  std::int64_t b;
  int hkv;
  std::vector<double> dq, dk;              // [heads of it,TQ,K], [TK,K]
  std::vector<double> terms_dq, terms_dk;  // of a row: the squares of what is summed
};

class WeightsBackwardExpectation : public Expectation {
 public:
  WeightsBackwardExpectation(const TensorSet& set, bool sampled)
      : problem_(make_problem(host_arguments<AttentionWeightsBackwardArgs>(
            attention_weights_backward_signature(), set))),
        p_(problem_.forward),
        share_(p_.H / p_.HKV) {
    constexpr std::int64_t kGroups = 4;
    for (const std::int64_t i : spread(p_.B * p_.HKV, sampled ? kGroups : kMost)) {
      groups_.push_back({i / p_.HKV, static_cast<int>(i % p_.HKV), {}, {}, {}, {}});
    }
    const std::int64_t count = std::ssize(groups_);
#pragma omp parallel for schedule(dynamic)
    for (std::int64_t i = 0; i < count; ++i) define(groups_[i]);
  }

  std::vector<OutputError> compare(const TensorSet& set, const Buffers& after) const override {
    const double limit = attention_gradient_limit(p_.dtype);
    std::vector<Squares> of_dq, of_dk;
    for (const Group& group : groups_) {
      Squares& dq = of_dq.emplace_back();
      for (int one = 0; one < share_; ++one) {
        compare_rows(dq, set.get("dq"), after, group.b, group.hkv * share_ + one,
                     group.dq.data() + one * p_.TQ * p_.K, group.terms_dq.data() + one * p_.TQ);
      }
      compare_rows(of_dk.emplace_back(), set.get("dk"), after, group.b, group.hkv, group.dk.data(),
                   group.terms_dk.data());
    }
    return {judge("dq", of_dq, limit), judge("dk", of_dk, limit)};
  }

 private:
  void define(Group& group) const {
    const std::int64_t K = p_.K;
    group.dq.resize(share_ * p_.TQ * K);
    group.terms_dq.resize(share_ * p_.TQ);
    group.dk.resize(p_.TK * K);
    group.terms_dk.resize(p_.TK);
    for (int one = 0; one < share_; ++one) {
      const int h = group.hkv * share_ + one;
      const reference::AttentionHead head = reference::weights_head(p_, group.b, h);
      for (std::int64_t i = 0; i < p_.TQ; ++i) {
        const std::int64_t row = one * p_.TQ + i;
        group.terms_dq[row] =
            reference::add_weights_gradients(problem_, head, h, i, group.dq.data() + row * K,
                                             group.dk.data(), group.terms_dk.data());
      }
    }
  }

  /// Compares all rows of one head of a gradient. As attention's are, they are measured by a share
  /// of what they sum, too: the weights that a backward is given are rounded.
  static void compare_rows(Squares& squares, const NamedTensor& x, const Buffers& after,
                           std::int64_t b, int head, const double* expected, const double* terms) {
    constexpr double kTermShare = 0.25;
    const std::byte* data = after[x.buffer].data() + x.offset;
    const std::int64_t K = x.shape[3];
    for (std::int64_t t = 0; t < x.shape[1]; ++t) {
      const std::int64_t row = b * x.strides[0] + t * x.strides[1] + head * x.strides[2];
      for (std::int64_t c = 0; c < K; ++c) {
        squares.add(load(x.dtype, data, row + c), expected[t * K + c]);
      }
      squares.right += kTermShare * terms[t];
    }
  }

  AttentionWeightsBackwardProblem problem_;
  const AttentionWeightsForwardProblem& p_;
  int share_;  // heads of a key head
  std::vector<Group> groups_;
};

}  // namespace

std::unique_ptr<Expectation> expect_attention_weights(const TensorSet& set, bool sampled) {
  return std::make_unique<WeightsExpectation>(set, sampled);
}

std::unique_ptr<Expectation> expect_attention_weights_backward(const TensorSet& set, bool sampled) {
  return std::make_unique<WeightsBackwardExpectation>(set, sampled);
}

}  // namespace tandem::tools
