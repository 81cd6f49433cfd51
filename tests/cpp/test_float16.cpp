// bf16 and fp16 conversions against the definition: every 16-bit pattern, and every place where
// rounding changes its mind.
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>

#include "core/float16.h"

namespace tandem {
namespace {

/// The value of a pattern with `exponent_bits` and `mantissa_bits`, in double, from the definition.
double value_of(std::uint32_t bits, int exponent_bits, int mantissa_bits) {
  const int bias = (1 << (exponent_bits - 1)) - 1;
  const int exponent = (bits >> mantissa_bits) & ((1 << exponent_bits) - 1);
  const int mantissa = bits & ((1 << mantissa_bits) - 1);
  const double sign = bits >> (exponent_bits + mantissa_bits) ? -1.0 : 1.0;
  if (exponent == (1 << exponent_bits) - 1) {
    return mantissa ? std::numeric_limits<double>::quiet_NaN()
                    : sign * std::numeric_limits<double>::infinity();
  }
  const int hidden = exponent ? 1 << mantissa_bits : 0;
  return sign * std::ldexp(hidden + mantissa, (exponent ? exponent : 1) - bias - mantissa_bits);
}

template <typename T>
struct Format;
template <>
struct Format<BFloat16> {
  static constexpr int kExponent = 8, kMantissa = 7;
};
template <>
struct Format<Float16> {
  static constexpr int kExponent = 5, kMantissa = 10;
};

template <typename T>
double definition(std::uint32_t bits) {
  return value_of(bits, Format<T>::kExponent, Format<T>::kMantissa);
}

template <typename T>
class Float16Test : public testing::Test {};
using Types = testing::Types<BFloat16, Float16>;
TYPED_TEST_SUITE(Float16Test, Types);

TYPED_TEST(Float16Test, ToFloatIsExactAndComesBack) {
  for (std::uint32_t bits = 0; bits < 0x10000; ++bits) {
    const float value = to_float(TypeParam{static_cast<std::uint16_t>(bits)});
    const double expected = definition<TypeParam>(bits);
    if (std::isnan(expected)) {
      ASSERT_TRUE(std::isnan(value)) << std::hex << bits;
      ASSERT_TRUE(std::isnan(to_float(from_float<TypeParam>(value)))) << std::hex << bits;
    } else {
      ASSERT_EQ(value, expected) << std::hex << bits;
      ASSERT_EQ(from_float<TypeParam>(value).bits, bits);  // -0 too
    }
  }
}

TYPED_TEST(Float16Test, RoundsToNearestEven) {
  constexpr std::uint32_t kInf = ((1u << Format<TypeParam>::kExponent) - 1)
                                 << Format<TypeParam>::kMantissa;
  for (std::uint32_t bits = 0; bits + 1 < kInf; ++bits) {
    const double below = definition<TypeParam>(bits);
    const double above = definition<TypeParam>(bits + 1);
    const float middle = static_cast<float>((below + above) / 2);  // exact: one bit more
    const std::uint32_t even = bits % 2 ? bits + 1 : bits;
    ASSERT_EQ(from_float<TypeParam>(middle).bits, even) << std::hex << bits;
    ASSERT_EQ(from_float<TypeParam>(std::nextafter(middle, 0.0f)).bits, bits) << std::hex << bits;
    ASSERT_EQ(from_float<TypeParam>(std::nextafter(middle, INFINITY)).bits, bits + 1)
        << std::hex << bits;
    ASSERT_EQ(from_float<TypeParam>(-middle).bits, even | 0x8000u) << std::hex << bits;
  }
}

TYPED_TEST(Float16Test, Extremes) {
  const float largest = static_cast<float>(definition<TypeParam>(
      (((1u << Format<TypeParam>::kExponent) - 1) << Format<TypeParam>::kMantissa) - 1));
  const float infinity = std::numeric_limits<float>::infinity();
  EXPECT_EQ(to_float(from_float<TypeParam>(infinity)), infinity);
  EXPECT_EQ(to_float(from_float<TypeParam>(-infinity)), -infinity);
  EXPECT_EQ(to_float(from_float<TypeParam>(std::numeric_limits<float>::max())), infinity);
  EXPECT_EQ(to_float(from_float<TypeParam>(largest)), largest);
  // A NaN whose payload sits in the bits that are cut off must not become inf.
  for (const std::uint32_t bits : {0x7f800001u, 0xff800001u, 0x7fffffffu, 0xffffffffu}) {
    EXPECT_TRUE(std::isnan(to_float(from_float<TypeParam>(std::bit_cast<float>(bits)))));
  }
  EXPECT_EQ(from_float<TypeParam>(std::numeric_limits<float>::denorm_min()).bits, 0);
}

TEST(Float16, HalfOverflowsAtItsMiddle) {
  EXPECT_EQ(from_float<Float16>(std::nextafter(65520.0f, 0.0f)).bits, 0x7bff);
  EXPECT_EQ(from_float<Float16>(65520.0f).bits, 0x7c00);
}

}  // namespace
}  // namespace tandem
