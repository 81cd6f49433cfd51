// attention's gradients against the fp64 definition.
#include <algorithm>
#include <cstddef>
#include <limits>
#include <vector>

#include "cli/calls/arguments.h"
#include "cli/calls/judge.h"
#include "cli/ops/attention.h"
#include "reference/attention.h"

namespace tandem::tools {
namespace {

/// What the definition gives for one row of a gradient.
struct Row {
  std::int64_t b, t;
  int head;
  std::vector<double> values;
  double terms = 0;  // the squares of what is summed
};

/// The outputs of one sequence and head.
struct Outputs {
  std::vector<double> o;            // [queries,V]
  std::vector<double> log_sum_exp;  // [queries]
};

/// One key head of one sequence: some rows of its gradients.
struct Group {
  std::int64_t n;
  int hkv;
  std::vector<Row> dq, dk, dv;
};

class AttentionBackwardExpectation : public Expectation {
 public:
  AttentionBackwardExpectation(const TensorSet& set, bool sampled)
      : problem_(make_problem(
            host_arguments<AttentionBackwardArgs>(attention_backward_signature(), set))),
        p_(problem_.forward),
        share_(p_.H / p_.HKV),
        sampled_(sampled) {
    constexpr std::int64_t kGroups = 8, kMost = std::numeric_limits<std::int64_t>::max();
    for (const std::int64_t i : spread(p_.N * p_.HKV, sampled ? kGroups : kMost)) {
      groups_.push_back({i / p_.HKV, static_cast<int>(i % p_.HKV), {}, {}, {}});
    }
    if (sampled) run_forward();
    const std::int64_t count = std::ssize(groups_);
#pragma omp parallel for schedule(dynamic)
    for (std::int64_t i = 0; i < count; ++i) define(groups_[i]);
  }

  std::vector<OutputError> compare(const TensorSet& set, const Buffers& after) const override {
    const auto judged = [&](const char* name, std::vector<Row> Group::*rows, bool of_keys) {
      return judge(name, compare_rows(set.get(name), after, rows, of_keys),
                   attention_gradient_limit(p_.dtype));
    };
    return {judged("dq", &Group::dq, false), judged("dk", &Group::dk, true),
            judged("dv", &Group::dv, true)};
  }

 private:
  /// Finds the outputs of every query by the CPU backend, which other cases check: by the
  /// definition they take minutes.
  void run_forward() {
    forward_ = p_;
    o_.resize(p_.B * p_.TQ * p_.H * p_.V * size_of(p_.dtype));
    log_sum_exp_.resize(p_.B * p_.H * p_.TQ * size_of(real_dtype(p_.dtype)));
    const std::int64_t row = static_cast<std::int64_t>(p_.H) * p_.V;
    forward_.o = {o_.data(), p_.TQ * row, row, p_.V};
    forward_.log_sum_exp = reinterpret_cast<float*>(log_sum_exp_.data());
    cpu::attention_forward(forward_);
  }

  Outputs outputs_of(const reference::AttentionHead& head, int h) const {
    const reference::AttentionSpan& span = head.span;
    Outputs out;
    if (sampled_) {
      out.o = reference::read_head(p_.dtype, forward_.o, span.b, span.q_begin, span.q_end, h, p_.V);
    }
    for (std::int64_t i = 0; i < span.queries(); ++i) {
      if (sampled_) {
        const std::int64_t at = (span.b * p_.H + h) * p_.TQ + span.q_begin + i;
        out.log_sum_exp.push_back(reference::real(p_.dtype, forward_.log_sum_exp, at));
      } else {
        out.log_sum_exp.push_back(head.log_sum_exp(i));
        const std::vector<double> o = head.output(i, out.log_sum_exp.back());
        out.o.insert(out.o.end(), o.begin(), o.end());
      }
    }
    return out;
  }

  void define(Group& group) const {
    for (int h = group.hkv * share_; h < (group.hkv + 1) * share_; ++h) {
      const reference::AttentionHeadBackward head(problem_, group.n, h);
      const Outputs out = outputs_of(head, h);
      define_dq(group, head, h, out);
      define_dk_and_dv(group, head, out);
    }
  }

  /// How many rows of a gradient are defined, each of so many terms: with `sampled`, a moment's
  /// work.
  std::int64_t wanted(std::int64_t rows, std::int64_t terms) const {
    constexpr std::int64_t kFewest = 8, kCost = 60'000'000;
    return sampled_ ? std::max(kFewest, kCost / ((terms + 1) * (p_.K + p_.V))) : rows;
  }

  void define_dq(Group& group, const reference::AttentionHeadBackward& head, int h,
                 const Outputs& out) const {
    const reference::AttentionSpan& span = head.span;
    for (const std::int64_t i : spread(span.queries(), wanted(span.queries(), span.keys()))) {
      Row row{span.b, span.q_begin + i, h, std::vector<double>(p_.K)};
      row.terms = head.add_dq(i, out.log_sum_exp[i], &out.o[i * p_.V], row.values.data());
      group.dq.push_back(std::move(row));
    }
  }

  /// Adds what goes through one head to the rows of its key head.
  void define_dk_and_dv(Group& group, const reference::AttentionHeadBackward& head,
                        const Outputs& out) const {
    const reference::AttentionSpan& span = head.span;
    const auto keys = spread(span.keys(), wanted(span.keys(), span.queries() * share_));
    for (const std::int64_t j : keys) {
      if (group.dk.size() == keys.size()) break;
      group.dk.push_back({span.b, span.k_begin + j, group.hkv, std::vector<double>(p_.K)});
      group.dv.push_back({span.b, span.k_begin + j, group.hkv, std::vector<double>(p_.V)});
    }
    for (std::size_t i = 0; i < keys.size(); ++i) {
      Row& dk = group.dk[i];
      dk.terms += head.add_dk_and_dv(keys[i], out.log_sum_exp, out.o, dk.values.data(),
                                     group.dv[i].values.data());
    }
  }

  std::vector<Squares> compare_rows(const NamedTensor& x, const Buffers& after,
                                    std::vector<Row> Group::*rows, bool of_keys) const {
    // Share of what a gradient sums that it is measured by, beside its own size: the gradient by a
    // score is a difference, with an output that was rounded, and vanishes where a query sees one
    // key.
    constexpr double kTermShare = 0.25;
    const std::byte* data = after[x.buffer].data() + x.offset;
    const auto add = [&](Squares& squares, std::int64_t b, std::int64_t t, std::int64_t head,
                         const double* expected) {
      const std::int64_t row = b * x.strides[0] + t * x.strides[1] + head * x.strides[2];
      for (std::int64_t c = 0; c < x.shape[3]; ++c) {
        squares.add(load(x.dtype, data, row + c), expected ? expected[c] : 0);
      }
    };
    std::vector<Squares> all(1);
    for (const auto& [b, t] : tokens_outside(p_, of_keys)) {
      for (std::int64_t head = 0; head < x.shape[2]; ++head) add(all[0], b, t, head, nullptr);
    }
    for (const Group& group : groups_) {
      Squares& squares = all.emplace_back();
      for (const Row& row : group.*rows) {
        add(squares, row.b, row.t, row.head, row.values.data());
        squares.right += kTermShare * row.terms;
      }
    }
    return all;
  }

  AttentionBackwardProblem problem_;
  const AttentionForwardProblem& p_;
  int share_;  // heads of a key head
  bool sampled_;
  AttentionForwardProblem forward_;
  std::vector<std::byte> o_, log_sum_exp_;
  std::vector<Group> groups_;
};

}  // namespace

std::unique_ptr<Expectation> expect_attention_backward(const TensorSet& set, bool sampled) {
  return std::make_unique<AttentionBackwardExpectation>(set, sampled);
}

}  // namespace tandem::tools
