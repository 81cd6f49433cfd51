// For two ways to run a call, the second of which is right where inputs are not finite, too.
#pragma once

#include <cstdint>

namespace tandem::cuda::gla {

/// Words on the device.
struct FiniteGuard {
  std::uint32_t* non_finite = nullptr;     // of the first: set where an output is not finite
  const std::uint32_t* only_if = nullptr;  // of the second: does nothing where this is 0
};

}  // namespace tandem::cuda::gla
