// The fp64 definition of gla's backward against finite differences of the fp64 forward, element by
// element. A loss <d_o, o> + <d_final_state, final_state> is linear in every single q, k, v and
// state, so a difference is exact there; by g it is wrong by its third derivative.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "cli/cases/random.h"
#include "reference/gla_backward.h"

namespace tandem {
namespace {

constexpr std::int64_t kB = 2, kT = 5;
constexpr int kH = 4, kHQ = 2, kK = 3, kV = 2;
constexpr double kStep = 1.0 / 1024;
constexpr float kInf = std::numeric_limits<float>::infinity();

/// Multiples of 1/256 in (-4,4): a step is exact in fp32.
std::vector<float> values(std::int64_t count, const char* name) {
  const tools::RandomStream random(11, name);
  std::vector<float> out(count);
  for (std::int64_t i = 0; i < count; ++i) {
    out[i] = static_cast<float>(std::round(std::fmod(random.normal(i), 4.0) * 256) / 256);
  }
  return out;
}

struct Problem {
  Problem() {
    GlaForwardProblem& f = problem.forward;
    f.dtype = DType::kFloat32;
    f.B = f.N = kB;
    f.T = kT;
    f.H = kH;
    f.HQ = kHQ;
    f.K = kK;
    f.V = kV;
    const auto tensor = [](std::vector<float>& x, std::int64_t heads, std::int64_t dim) {
      return StridedTensor{x.data(), kT * heads * dim, heads * dim, dim};
    };
    f.q = tensor(q, kHQ, kK);
    f.k = tensor(k, kHQ, kK);
    f.v = tensor(v, kH, kV);
    f.log_decay = {g.data(), kT * kH, kH, 1};
    f.initial_state = initial.data();
    problem.d_o = tensor(d_o, kH, kV);
    problem.d_final_state = d_final.data();
    for (float& x : g) x = -std::fabs(x);
  }

  double loss() const {
    std::vector<double> o, state;
    reference::gla_forward(problem.forward, o, state);
    double sum = 0;
    for (std::size_t i = 0; i < o.size(); ++i) sum += o[i] * d_o[i];
    for (std::size_t i = 0; i < state.size(); ++i) sum += state[i] * d_final[i];
    return sum;
  }

  double difference(float& x) const {
    const float kept = x;
    x = static_cast<float>(kept + kStep);
    const double above = loss();
    x = static_cast<float>(kept - kStep);
    const double below = loss();
    x = kept;
    return (above - below) / (2 * kStep);
  }

  std::vector<float> q = values(kB * kT * kHQ * kK, "q"), k = values(kB * kT * kHQ * kK, "k");
  std::vector<float> v = values(kB * kT * kH * kV, "v"), d_o = values(kB * kT * kH * kV, "d_o");
  std::vector<float> g = values(kB * kT * kH, "g");
  std::vector<float> initial = values(kB * kH * kK * kV, "initial");
  std::vector<float> d_final = values(kB * kH * kK * kV, "d_final");
  GlaBackwardProblem problem;
};

void compare(Problem& p) {
  constexpr int kGroup = kH / kHQ;
  for (std::int64_t n = 0; n < kB; ++n) {
    for (int hq = 0; hq < kHQ; ++hq) {
      std::vector<double> dq(kT * kK), dk(kT * kK);
      for (int h = hq * kGroup; h < (hq + 1) * kGroup; ++h) {
        const auto head = reference::gla_backward_one(p.problem, n, h);
        for (std::size_t i = 0; i < dq.size(); ++i) {
          dq[i] += head.dq[i];
          dk[i] += head.dk[i];
        }
        for (std::int64_t t = 0; t < kT; ++t) {
          const std::int64_t token = (n * kT + t) * kH + h;
          for (int j = 0; j < kV; ++j) {
            EXPECT_NEAR(head.dv[t * kV + j], p.difference(p.v[token * kV + j]), 1e-9);
          }
          if (p.g[token] == -kInf) {
            EXPECT_EQ(head.dg[t], 0);
          } else {
            const double dg = p.difference(p.g[token]);
            EXPECT_NEAR(head.dg[t], dg, 1e-5 * (1 + std::fabs(dg)));
          }
        }
        for (int i = 0; i < kK * kV; ++i) {
          EXPECT_NEAR(head.d_state[i], p.difference(p.initial[(n * kH + h) * kK * kV + i]), 1e-9);
        }
      }
      for (std::int64_t t = 0; t < kT; ++t) {
        for (int i = 0; i < kK; ++i) {
          const std::int64_t at = ((n * kT + t) * kHQ + hq) * kK + i;
          EXPECT_NEAR(dq[t * kK + i], p.difference(p.q[at]), 1e-9);
          EXPECT_NEAR(dk[t * kK + i], p.difference(p.k[at]), 1e-9);
        }
      }
    }
  }
}

TEST(GlaBackwardDefinition, IsTheDerivativeOfTheForward) {
  Problem p;
  compare(p);
}

TEST(GlaBackwardDefinition, AcrossResets) {
  Problem p;
  for (std::size_t i = 0; i < p.g.size(); i += 3) p.g[i] = -kInf;
  compare(p);
}

TEST(GlaBackwardDefinition, WithSequences) {
  Problem p;
  // Packs the tokens as one batch of sequences: nothing but their boundaries may change.
  std::vector<reference::GlaHeadGradients> batches;
  for (std::int64_t n = 0; n < kB; ++n) {
    batches.push_back(reference::gla_backward_one(p.problem, n, 1));
  }
  const std::vector<std::int32_t> offsets = {0, kT, 2 * kT};
  p.problem.forward.B = 1;
  p.problem.forward.T = kB * kT;
  p.problem.forward.cu_seqlens = offsets.data();
  for (std::int64_t n = 0; n < kB; ++n) {
    const auto head = reference::gla_backward_one(p.problem, n, 1);
    EXPECT_EQ(head.dq, batches[n].dq);
    EXPECT_EQ(head.dk, batches[n].dk);
    EXPECT_EQ(head.dv, batches[n].dv);
    EXPECT_EQ(head.dg, batches[n].dg);
    EXPECT_EQ(head.d_state, batches[n].d_state);
  }
}

}  // namespace
}  // namespace tandem
