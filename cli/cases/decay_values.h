// The decays of a case: what its distribution draws.
#pragma once

#include <cstdint>

#include "cli/cases/cases.h"
#include "cli/cases/random.h"

namespace tandem::tools {

/// Returns the log decay at linear index `i` of its tensor, at token `t`; `constant`: a decay per
/// head, where t is 0.
float log_decay_value(DecayDistribution distribution, const RandomStream& random, std::int64_t i,
                      std::int64_t t, bool constant = false);

}  // namespace tandem::tools
