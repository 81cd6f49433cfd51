// 2^x without branches or library calls, so that loops over it vectorise. Relative error 1e-7;
// below 2^-126 the result is 0, above 2^128 inf; NaN stays.
#pragma once

#include <bit>
#include <cstdint>

#include "cpu/isa.h"

namespace tandem::cpu {

TANDEM_ALWAYS_INLINE float exp2(float x) {
  x = x < -127.0f ? -127.0f : x;
  x = x > 128.0f ? 128.0f : x;
  constexpr float kRound =
      12582912.0f;  // 1.5 * 2^23: adding it rounds to an integer in the low bits
  const float shifted = x + kRound;
  const float f = x - (shifted - kRound);  // in [-0.5, 0.5]
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

}  // namespace tandem::cpu
