// The fp64 definition of gated_scan's gradients against central differences of the fp64 forward,
// element by element.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "cli/cases/random.h"
#include "reference/gated_scan.h"

namespace tandem {
namespace {

constexpr std::int64_t kB = 2, kT = 7;
constexpr int kD = 3;
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
  Problem(bool log_decay, bool with_gate) {
    GatedScanForwardProblem& f = problem.forward;
    f.dtype = f.decay_dtype = DType::kFloat32;
    f.B = f.N = kB;
    f.T = kT;
    f.D = kD;
    f.log_decay = log_decay;
    const auto tensor = [](std::vector<float>& x) { return TokenTensor{x.data(), kT * kD, kD}; };
    f.x = tensor(x);
    f.decay = tensor(decay);
    if (with_gate) f.gate = tensor(gate);
    f.initial_state = initial.data();
    problem.d_out = tensor(d_out);
    problem.d_final_state = d_final.data();
    for (float& a : decay) a = log_decay ? -std::fabs(a) : std::fabs(a) / 4;
  }

  /// Returns what the loss depends on through batch n, channel d.
  double loss(std::int64_t n, int d) const {
    const reference::ScanChannel c = reference::gated_scan_forward_one(problem.forward, n, d);
    double sum = c.states.back() * d_final[n * kD + d];
    for (std::int64_t t = 0; t < kT; ++t) sum += c.out[t] * d_out[(n * kT + t) * kD + d];
    return sum;
  }

  double difference(float& value, std::int64_t n, int d) const {
    const float kept = value;
    value = static_cast<float>(kept + kStep);
    const double above = loss(n, d);
    value = static_cast<float>(kept - kStep);
    const double below = loss(n, d);
    value = kept;
    return (above - below) / (2 * kStep);
  }

  std::vector<float> x = values(kB * kT * kD, "x"), decay = values(kB * kT * kD, "decay");
  std::vector<float> gate = values(kB * kT * kD, "gate"), d_out = values(kB * kT * kD, "d_out");
  std::vector<float> initial = values(kB * kD, "initial"), d_final = values(kB * kD, "d_final");
  GatedScanBackwardProblem problem;
};

void compare(Problem& p) {
  for (std::int64_t n = 0; n < kB; ++n) {
    for (int d = 0; d < kD; ++d) {
      const auto g = reference::gated_scan_backward_one(p.problem, n, d);
      for (std::int64_t t = 0; t < kT; ++t) {
        const std::int64_t at = (n * kT + t) * kD + d;
        // The loss is linear in every x, decay and state; in log decays and gates it is not.
        EXPECT_NEAR(g.dx[t], p.difference(p.x[at], n, d), 1e-9);
        if (p.decay[at] == -kInf) {
          EXPECT_EQ(g.d_decay[t], 0);
        } else {
          const double expected = p.difference(p.decay[at], n, d);
          EXPECT_NEAR(g.d_decay[t], expected, 1e-5 * (1 + std::fabs(expected)));
        }
        if (g.d_gate.empty()) continue;
        const double expected = p.difference(p.gate[at], n, d);
        EXPECT_NEAR(g.d_gate[t], expected, 1e-5 * (1 + std::fabs(expected)));
      }
      EXPECT_NEAR(g.d_initial_state, p.difference(p.initial[n * kD + d], n, d), 1e-9);
    }
  }
}

TEST(GatedScanDefinition, IsTheDerivativeOfTheForward) {
  for (const bool log_decay : {false, true}) {
    for (const bool with_gate : {false, true}) {
      Problem p(log_decay, with_gate);
      compare(p);
    }
  }
}

TEST(GatedScanDefinition, AcrossResets) {
  for (const bool log_decay : {false, true}) {
    Problem p(log_decay, true);
    for (std::size_t i = 0; i < p.decay.size(); i += 4) p.decay[i] = log_decay ? -kInf : 0;
    compare(p);
  }
}

TEST(GatedScanDefinition, WithSequences) {
  Problem p(true, true);
  // Packs the tokens as one batch of sequences: nothing but their boundaries may change.
  std::vector<reference::ScanChannelGradients> batches;
  for (std::int64_t n = 0; n < kB; ++n) {
    batches.push_back(reference::gated_scan_backward_one(p.problem, n, 1));
  }
  const std::vector<std::int32_t> offsets = {0, kT, 2 * kT};
  p.problem.forward.B = 1;
  p.problem.forward.T = kB * kT;
  p.problem.forward.cu_seqlens = offsets.data();
  for (std::int64_t n = 0; n < kB; ++n) {
    const auto g = reference::gated_scan_backward_one(p.problem, n, 1);
    EXPECT_EQ(g.dx, batches[n].dx);
    EXPECT_EQ(g.d_decay, batches[n].d_decay);
    EXPECT_EQ(g.d_gate, batches[n].d_gate);
    EXPECT_EQ(g.d_initial_state, batches[n].d_initial_state);
  }
}

}  // namespace
}  // namespace tandem
