// How far back a state is expected to depend on its tokens, before decays are known.
#pragma once

#include <algorithm>
#include <cstdint>

#include "ops/gla_problem.h"

namespace tandem::cuda::gla {

/// Tokens back that a state is expected to depend on, as common/remembered.cuh finds: right where
/// decays are 0.14 a token, in natural log. Only times are predicted from it.
inline std::int64_t expected_reach(const GlaRecurrence& problem) {
  constexpr std::int64_t kTokens = 320;
  return problem.log_decay.data == nullptr ? problem.T : std::min(problem.T, kTokens);
}

}  // namespace tandem::cuda::gla
