// gla's gradients against the fp64 definition.
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <iterator>
#include <vector>

#include "cli/calls/arguments.h"
#include "cli/calls/judge.h"
#include "cli/ops/gla.h"
#include "reference/gla_backward.h"

namespace tandem::tools {
namespace {

/// One head group of one sequence, and what the definition gives for it.
struct Group {
  std::int64_t b = 0, n = 0;
  int hq = 0;
  TokenRange tokens;
  std::vector<double> dq, dk;  // [tokens,K], summed over the head group
  std::vector<reference::GlaHeadGradients> heads;
};

/// Keeps the first and last run of `together` head groups and some between: about a second of work
/// on two cores, when a group costs so many multiplications, and four groups at least.
void sample(std::vector<Group>& groups, double cost, std::size_t together) {
  const std::size_t runs = groups.size() / together;
  const double affordable = std::max(4.0, 4e8 / (cost + 1)) / static_cast<double>(together);
  const auto wanted = std::max<std::size_t>(1, static_cast<std::size_t>(affordable));
  if (runs <= wanted) return;
  std::vector<Group> kept;
  for (std::size_t i = 0; i < wanted; ++i) {
    const std::size_t run = wanted == 1 ? 0 : i * (runs - 1) / (wanted - 1);
    std::move(groups.begin() + run * together, groups.begin() + (run + 1) * together,
              std::back_inserter(kept));
  }
  groups = std::move(kept);
}

class GlaBackwardExpectation : public Expectation {
 public:
  GlaBackwardExpectation(const TensorSet& set, bool sampled)
      : problem_(make_problem(host_arguments<GlaBackwardArgs>(gla_backward_signature(), set))),
        p_(problem_.forward),
        share_(p_.H / p_.HQ) {
    inside_.resize(p_.T, !p_.cu_seqlens);
    for (int hq = 0; hq < p_.HQ; ++hq) {
      for (std::int64_t n = 0; n < p_.N; ++n) {
        const TokenRange tokens = tokens_of(p_, n);
        if (p_.cu_seqlens)
          std::fill(inside_.begin() + tokens.begin, inside_.begin() + tokens.end, 1);
        groups_.push_back({p_.cu_seqlens ? 0 : n, n, hq, tokens, {}, {}, {}});
      }
    }
    // A constant decay's gradient is a sum over all sequences of its head.
    const NamedTensor* decay = set.find("log_decay");
    const bool whole_heads = decay != nullptr && decay->shape.rank() == 1;
    if (sampled && p_.N > 0) {
      sample(groups_, 4.0 * static_cast<double>(p_.T) * p_.K * p_.V * share_,
             whole_heads ? p_.N : 1);
    }
    const std::int64_t count = static_cast<std::int64_t>(groups_.size());
#pragma omp parallel for schedule(dynamic)
    for (std::int64_t i = 0; i < count; ++i) define(groups_[i]);
  }

  std::vector<OutputError> compare(const TensorSet& set, const Buffers& after) const override {
    // Heads that share q and k round S and dS once more, between the chunks of a pair. Where decays
    // grow nothing else counts: four roundings of 1.7e-3 in bf16.
    const double roundings = p_.HQ < p_.H ? 1.15 : 1;
    const double limit = roundings * error_limit(p_.dtype);
    std::vector<OutputError> errors = {
        judge("dq", compare_shared(set.get("dq"), after, &Group::dq), limit),
        judge("dk", compare_shared(set.get("dk"), after, &Group::dk), limit),
        judge("dv", compare_dv(set.get("dv"), after), limit)};
    if (const NamedTensor* decay = set.find("d_log_decay")) {
      const double decay_limit = 2 * limit;
      const bool per_token = decay->shape.rank() == 3;
      errors.push_back(judge(
          "d_log_decay",
          per_token ? compare_decay(*decay, after) : compare_constant(*decay, after, decay_limit),
          decay_limit));
    }
    if (const NamedTensor* state = set.find("d_initial_state")) {
      errors.push_back(judge("d_initial_state", compare_state(*state, after), limit));
    }
    return errors;
  }

 private:
  void define(Group& group) const {
    for (int member = 0; member < share_; ++member) {
      group.heads.push_back(
          reference::gla_backward_one(problem_, group.n, group.hq * share_ + member));
      const reference::GlaHeadGradients& head = group.heads.back();
      group.dq.resize(head.dq.size());
      group.dk.resize(head.dk.size());
      for (std::size_t i = 0; i < head.dq.size(); ++i) {
        group.dq[i] += head.dq[i];
        group.dk[i] += head.dk[i];
      }
    }
  }

  /// Compares rows of one head with `expected` [tokens,dim].
  static Squares compare_rows(const NamedTensor& x, const Buffers& after, const Group& group, int h,
                              const std::vector<double>& expected) {
    const std::byte* data = after[x.buffer].data() + x.offset;
    const std::int64_t dim = x.shape[3];
    Squares squares;
    for (std::int64_t t = group.tokens.begin; t < group.tokens.end; ++t) {
      const std::int64_t row = group.b * x.strides[0] + t * x.strides[1] + h * x.strides[2];
      for (std::int64_t i = 0; i < dim; ++i) {
        squares.add(load(x.dtype, data, row + i), expected[(t - group.tokens.begin) * dim + i]);
      }
    }
    return squares;
  }

  /// Compares tokens outside every sequence with 0; `x` is [B,T,heads] or [B,T,heads,dim].
  Squares compare_outside(const NamedTensor& x, const Buffers& after) const {
    const std::byte* data = after[x.buffer].data() + x.offset;
    const std::int64_t dim = x.shape.rank() == 4 ? x.shape[3] : 1;
    Squares squares;
    for (std::int64_t t = 0; t < p_.T; ++t) {
      for (std::int64_t h = 0; h < x.shape[2] && !inside_[t]; ++h) {
        for (std::int64_t i = 0; i < dim; ++i) {
          squares.add(load(x.dtype, data, t * x.strides[1] + h * x.strides[2] + i), 0);
        }
      }
    }
    return squares;
  }

  std::vector<Squares> compare_shared(const NamedTensor& x, const Buffers& after,
                                      std::vector<double> Group::*expected) const {
    std::vector<Squares> all = {compare_outside(x, after)};
    for (const Group& group : groups_) {
      all.push_back(compare_rows(x, after, group, group.hq, group.*expected));
    }
    return all;
  }

  std::vector<Squares> compare_dv(const NamedTensor& x, const Buffers& after) const {
    std::vector<Squares> all = {compare_outside(x, after)};
    for (const Group& group : groups_) {
      for (int member = 0; member < share_; ++member) {
        const int h = group.hq * share_ + member;
        all.push_back(compare_rows(x, after, group, h, group.heads[member].dv));
      }
    }
    return all;
  }

  /// Share of q . dq that a decay's gradient is measured by, beside its own size: the gradient is a
  /// difference of such terms, and may vanish where they do not.
  static constexpr double kTermShare = 1e-3 * 1e-3;  // of squares

  /// The same of a constant decay: fp32 sums of products of 16-bit factors leave 1e-5 of q . dq,
  /// whichever the 16 bits are.
  double constant_share(double limit) const {
    const double share = size_of(p_.dtype) == 2 ? 1e-5 / limit : 1e-3;
    return share * share;
  }

  std::vector<Squares> compare_decay(const NamedTensor& x, const Buffers& after) const {
    const std::byte* data = after[x.buffer].data() + x.offset;
    std::vector<Squares> all = {compare_outside(x, after)};
    for (const Group& group : groups_) {
      for (int member = 0; member < share_; ++member) {
        const int h = group.hq * share_ + member;
        Squares squares;
        for (std::int64_t t = group.tokens.begin; t < group.tokens.end; ++t) {
          const std::int64_t at = group.b * x.strides[0] + t * x.strides[1] + h * x.strides[2];
          squares.add(load(x.dtype, data, at), group.heads[member].dg[t - group.tokens.begin]);
        }
        squares.right += kTermShare * group.heads[member].q_dq;
        all.push_back(squares);
      }
    }
    return all;
  }

  /// Compares a constant decay's gradient. It is a sum over tokens and sequences, whose errors go
  /// together within a sequence and which may cancel by chance: so it is measured by the sizes of
  /// what it sums. Not known of heads that were left out.
  std::vector<Squares> compare_constant(const NamedTensor& x, const Buffers& after,
                                        double limit) const {
    const std::byte* data = after[x.buffer].data() + x.offset;
    std::vector<double> expected(p_.H), terms(p_.H);
    std::vector<char> known(p_.H, p_.N == 0);
    for (const Group& group : groups_) {
      for (int member = 0; member < share_; ++member) {
        const reference::GlaHeadGradients& head = group.heads[member];
        const int h = group.hq * share_ + member;
        known[h] = 1;
        double sizes = 0;
        for (const double dg : head.dg) {
          expected[h] += dg;
          sizes += std::fabs(dg);
        }
        terms[h] += sizes * sizes + constant_share(limit) * head.q_dq;
      }
    }
    std::vector<Squares> all;
    for (int h = 0; h < p_.H; ++h) {
      if (!known[h]) continue;
      Squares squares;
      squares.add(load(x.dtype, data, h * x.strides[0]), expected[h]);
      squares.right = terms[h];
      all.push_back(squares);
    }
    return all;
  }

  std::vector<Squares> compare_state(const NamedTensor& x, const Buffers& after) const {
    const std::byte* data = after[x.buffer].data() + x.offset;
    std::vector<Squares> all;
    for (const Group& group : groups_) {
      for (int member = 0; member < share_; ++member) {
        const std::vector<double>& expected = group.heads[member].d_state;
        const std::int64_t first = (group.n * p_.H + group.hq * share_ + member) *
                                   static_cast<std::int64_t>(expected.size());
        Squares squares;
        for (std::size_t i = 0; i < expected.size(); ++i) {
          squares.add(load(x.dtype, data, first + static_cast<std::int64_t>(i)), expected[i]);
        }
        all.push_back(squares);
      }
    }
    return all;
  }

  GlaBackwardProblem problem_;
  const GlaForwardProblem& p_;
  int share_;  // heads of a head group
  std::vector<Group> groups_;
  std::vector<char> inside_;  // tokens of some sequence
};

}  // namespace

std::unique_ptr<Expectation> expect_gla_backward(const TensorSet& set, bool sampled) {
  return std::make_unique<GlaBackwardExpectation>(set, sampled);
}

}  // namespace tandem::tools
