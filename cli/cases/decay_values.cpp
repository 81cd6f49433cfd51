#include "cli/cases/decay_values.h"

#include <cmath>
#include <limits>

namespace tandem::tools {
namespace {

float log_sigmoid(float x) { return std::fmin(x, 0.0f) - std::log1p(std::exp(-std::fabs(x))); }

}  // namespace

float log_decay_value(DecayDistribution distribution, const RandomStream& random, std::int64_t i,
                      std::int64_t t, bool constant) {
  constexpr float kInf = std::numeric_limits<float>::infinity();
  const float normal = log_sigmoid(random.normal(2 * i)) / 16;
  const float uniform = random.uniform(2 * i + 1);
  // A constant decay has so few values that chance might leave out the special one.
  const bool special = constant ? i % 3 == 1 : uniform < 1.0f / 16;
  switch (distribution) {
    case DecayDistribution::kNormal: return normal;
    case DecayDistribution::kNormalBench: return log_sigmoid(random.normal(2 * i) + 2);
    case DecayDistribution::kStrong: return -2 - 18 * uniform;
    case DecayDistribution::kReset: return special ? -kInf : normal;
    case DecayDistribution::kResetHalf: return uniform < 0.5f ? -kInf : normal;
    case DecayDistribution::kResetEdges: return t % 64 == 0 || t % 64 == 63 ? -kInf : normal;
    case DecayDistribution::kAllReset: return -kInf;
    case DecayDistribution::kMinus20: return -20;
    case DecayDistribution::kMinus100: return -100;
    case DecayDistribution::kHuge: return special ? -1e30f : normal;
    case DecayDistribution::kZero: return 0;
    case DecayDistribution::kAlternating: return t % 2 == 0 ? 0 : -20;
    case DecayDistribution::kPositive: return 0.02f * uniform;
    case DecayDistribution::kPhases: {
      const std::int64_t at = t % 1000;
      const auto phase = at < 500   ? DecayDistribution::kNormalBench
                         : at < 850 ? DecayDistribution::kZero
                                    : DecayDistribution::kPositive;
      return log_decay_value(phase, random, i, t, constant);
    }
  }
  return 0;
}

}  // namespace tandem::tools
