// 2^x and e^x without branches or library calls, so that loops over them vectorise. Relative error
// 1e-7; results below 2^-126 are 0, above 2^128 inf; NaN stays. In fp64 they are the library's.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>

#include "cpu/isa.h"

namespace tandem::cpu {

constexpr float kRoundToInteger =
    12582912.0f;  // 1.5 * 2^23: adding it rounds to an integer in the low bits

/// Returns 2^(f + n) for f in [-0.5,0.5] and n in [-127,128], given as n + kRoundToInteger.
TANDEM_ALWAYS_INLINE float exp2_of_parts(float f, float shifted) {
  // Minimax polynomial of degree 6; exactly 1 at 0.
  float p = 1.535336188319500e-4f;
  p = p * f + 1.339887440266574e-3f;
  p = p * f + 9.618437357674640e-3f;
  p = p * f + 5.550332471162809e-2f;
  p = p * f + 2.402264791363012e-1f;
  p = p * f + 6.931472028550421e-1f;
  p = p * f + 1.0f;
  const std::uint32_t exponent = std::bit_cast<std::uint32_t>(shifted) + 127u;
  return p * std::bit_cast<float>(exponent << 23);
}

TANDEM_ALWAYS_INLINE float exp2(float x) {
  x = x < -127.0f ? -127.0f : x;
  x = x > 128.0f ? 128.0f : x;
  const float shifted = x + kRoundToInteger;
  return exp2_of_parts(x - (shifted - kRoundToInteger), shifted);
}

TANDEM_ALWAYS_INLINE float exp(float x) {
  constexpr float kLog2E = 1.44269504f;
  x = x < -88.029694f ? -88.029694f : x;  // 2^-127
  x = x > 88.722839f ? 88.722839f : x;    // 2^128
  const float shifted = x * kLog2E + kRoundToInteger;
  const float n = shifted - kRoundToInteger;
  // why in two parts: n times the first, which has few bits, is exact, and so is the difference.
  const float rest = (x - n * 0.693359375f) - n * -2.12194440e-4f;
  return exp2_of_parts(rest * kLog2E, shifted);
}

inline double exp2(double x) { return std::exp2(x); }
inline double exp(double x) { return std::exp(x); }

}  // namespace tandem::cpu
