// Arithmetic on sizes that callers give: what does not fit becomes the largest value, and is
// refused where it is too large, instead of wrapping around.
#pragma once

#include <cstdint>
#include <limits>

namespace tandem {

constexpr std::int64_t kSaturated = std::numeric_limits<std::int64_t>::max();

/// Of values >= 0, or of one below with 1.
constexpr std::int64_t saturating_multiply(std::int64_t a, std::int64_t b) {
  std::int64_t product = 0;
  return __builtin_mul_overflow(a, b, &product) ? kSaturated : product;
}

/// Of values >= 0.
constexpr std::int64_t saturating_add(std::int64_t a, std::int64_t b) {
  std::int64_t sum = 0;
  return __builtin_add_overflow(a, b, &sum) ? kSaturated : sum;
}

}  // namespace tandem
