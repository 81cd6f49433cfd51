// The factor of scores q k^T, as problems keep it.
#pragma once

#include <cmath>
#include <limits>
#include <optional>
#include <sstream>
#include <string>

#include "core/check.h"
#include "ops/signature.h"

namespace tandem {

/// Sets the scale, K^-0.5 when absent; it must be finite, and so in fp32, which it is kept as.
template <class Problem>
void set_scale(const Signature& signature, std::optional<double> scale, Problem& problem) {
  const double value = scale.value_or(1.0 / std::sqrt(static_cast<double>(problem.K)));
  if (!std::isfinite(value)) {
    refuse(signature.name(), "scale must be finite, got " + std::to_string(value));
  }
  if (std::abs(value) > std::numeric_limits<float>::max()) {
    std::ostringstream got;
    got << value;
    refuse(signature.name(), "scale must be in fp32's range, got " + got.str());
  }
  problem.scale = static_cast<float>(value);
  problem.scale_rest = static_cast<float>(value - problem.scale);
}

}  // namespace tandem
