// The fp64 definition of attention: numbers made by hand, and its gradients against central
// differences of its forward, element by element.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "cli/cases/random.h"
#include "reference/attention.h"

namespace tandem {
namespace {

constexpr double kNothing = -std::numeric_limits<double>::infinity();

/// One batch of H = 2 query heads and one key head, in fp64.
struct Problem {
  Problem(std::int64_t TQ, std::int64_t TK, const AttentionMask& mask)
      : q(values(TQ * kH * kK, "q")),
        k(values(TK * kK, "k")),
        v(values(TK * kV, "v")),
        d_o(values(TQ * kH * kV, "d_o")),
        d_log_sum_exp(values(TQ * kH, "d_log_sum_exp")) {
    AttentionForwardProblem& p = problem.forward;
    p.dtype = DType::kFloat64;
    p.B = p.N = 1;
    p.TQ = TQ;
    p.TK = TK;
    p.H = kH;
    p.HKV = 1;
    p.K = kK;
    p.V = kV;
    p.scale = 0.5f;
    p.mask = mask;
    p.q = {q.data(), 0, kH * kK, kK};
    p.k = {k.data(), 0, kK, kK};
    p.v = {v.data(), 0, kV, kV};
    problem.d_o = {d_o.data(), 0, kH * kV, kV};
    problem.d_log_sum_exp = reinterpret_cast<const float*>(d_log_sum_exp.data());
  }

  static std::vector<double> values(std::int64_t count, const char* name) {
    const tools::RandomStream random(3, name);
    std::vector<double> out(count);
    for (std::int64_t i = 0; i < count; ++i) out[i] = random.normal(i);
    return out;
  }

  /// What the gradients are of.
  double loss() const {
    double sum = 0;
    for (int h = 0; h < kH; ++h) {
      const reference::AttentionHead head(problem.forward, 0, h);
      for (std::int64_t i = 0; i < head.span.queries(); ++i) {
        const double log_sum_exp = head.log_sum_exp(i);
        if (log_sum_exp != kNothing) sum += log_sum_exp * d_log_sum_exp[h * problem.forward.TQ + i];
        const std::vector<double> o = head.output(i, log_sum_exp);
        for (int c = 0; c < kV; ++c) sum += o[c] * d_o[(i * kH + h) * kV + c];
      }
    }
    return sum;
  }

  std::vector<double> differences(std::vector<double>& x) const {
    constexpr double kStep = 1e-5;
    std::vector<double> found;
    for (double& value : x) {
      const double kept = value;
      value = kept + kStep;
      const double above = loss();
      value = kept - kStep;
      found.push_back((above - loss()) / (2 * kStep));
      value = kept;
    }
    return found;
  }

  static constexpr int kH = 2, kK = 3, kV = 2;
  std::vector<double> q, k, v, d_o, d_log_sum_exp;
  AttentionBackwardProblem problem;
};

void expect_near(const std::vector<double>& found, const std::vector<double>& expected) {
  ASSERT_EQ(found.size(), expected.size());
  for (std::size_t i = 0; i < found.size(); ++i) EXPECT_NEAR(found[i], expected[i], 1e-7) << i;
}

TEST(AttentionDefinition, TwoKeysByHand) {
  Problem made(1, 2, {});
  made.q = {1, 0, 2, 0, 0, 0};
  made.k = {0, 5, 0, std::log(3.0), 5, 0};  // half of the first head's scores: 0 and log(3) / 2
  made.v = {1, 10, 2, 20};
  const reference::AttentionHead head(made.problem.forward, 0, 0);
  const double weight = std::sqrt(3.0) / (1 + std::sqrt(3.0));
  EXPECT_NEAR(head.log_sum_exp(0), std::log(1 + std::sqrt(3.0)), 1e-15);
  expect_near(head.output(0, head.log_sum_exp(0)), {1 + weight, 10 + 10 * weight});
}

/// The last query stands beside the last key.
TEST(AttentionDefinition, WhoSeesWhom) {
  const auto seen = [](std::int64_t TQ, std::int64_t TK, const AttentionMask& mask) {
    std::string rows;
    for (std::int64_t i = 0; i < TQ; ++i) {
      for (std::int64_t j = 0; j < TK; ++j) {
        rows += reference::sees(mask, {0, 0, TQ, 0, TK}, i, j) ? 'x' : '.';
      }
      rows += ' ';
    }
    return rows;
  };
  EXPECT_EQ(seen(2, 3, {}), "xxx xxx ");
  EXPECT_EQ(seen(2, 4, {.right = 0}), "xxx. xxxx ");
  EXPECT_EQ(seen(4, 2, {.right = 0}), ".. .. x. xx ");
  EXPECT_EQ(seen(3, 4, {.left = 1, .right = 0}), "xx.. .xx. ..xx ");
  EXPECT_EQ(seen(3, 3, {.left = 0, .right = 1}), "xx. .xx ..x ");
  EXPECT_EQ(seen(4, 2, {.left = 1}), "xx xx xx xx ");
}

TEST(AttentionDefinition, AQueryThatSeesNothing) {
  const Problem made(3, 1, {.right = 0});
  const reference::AttentionHead head(made.problem.forward, 0, 0);
  EXPECT_EQ(head.log_sum_exp(0), kNothing);
  EXPECT_EQ(head.output(0, kNothing), std::vector<double>(2));
}

TEST(AttentionDefinition, GradientsAreThoseOfTheForward) {
  for (const auto& [TQ, TK] : {std::pair{4, 4}, {3, 6}, {6, 3}}) {
    for (const AttentionMask mask : {AttentionMask{}, {.right = 0}, {.left = 1, .right = 1}}) {
      Problem made(TQ, TK, mask);
      std::vector<double> dq(made.q.size()), dk(made.k.size()), dv(made.v.size());
      for (int h = 0; h < Problem::kH; ++h) {
        const reference::AttentionHeadBackward head(made.problem, 0, h);
        std::vector<double> o, log_sum_exp;
        for (std::int64_t i = 0; i < TQ; ++i) {
          log_sum_exp.push_back(head.log_sum_exp(i));
          const std::vector<double> row = head.output(i, log_sum_exp.back());
          o.insert(o.end(), row.begin(), row.end());
          head.add_dq(i, log_sum_exp[i], row.data(), &dq[(i * Problem::kH + h) * Problem::kK]);
        }
        for (std::int64_t j = 0; j < TK; ++j) {
          head.add_dk_and_dv(j, log_sum_exp, o, &dk[j * Problem::kK], &dv[j * Problem::kV]);
        }
      }
      expect_near(dq, made.differences(made.q));
      expect_near(dk, made.differences(made.k));
      expect_near(dv, made.differences(made.v));
    }
  }
}

}  // namespace
}  // namespace tandem
