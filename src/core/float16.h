// bf16 and fp16 as storage types, and their exact conversions: to float without loss, from float
// rounded to nearest even. Plain integer and float arithmetic without branches, so that loops over
// them vectorise.
#pragma once

#include <bit>
#include <cstdint>

namespace tandem {

struct BFloat16 {
  std::uint16_t bits;
};

struct Float16 {
  std::uint16_t bits;
};

inline float to_float(float value) { return value; }
inline double to_float(double value) { return value; }  // fp64 stays fp64, both ways

inline float to_float(BFloat16 value) {
  return std::bit_cast<float>(static_cast<std::uint32_t>(value.bits) << 16);
}

inline float to_float(Float16 value) {
  const std::uint32_t sign = static_cast<std::uint32_t>(value.bits & 0x8000u) << 16;
  const std::uint32_t magnitude = value.bits & 0x7fffu;
  // Normal, inf and NaN: the exponent field moves by 127 - 15, inf's and NaN's twice that.
  const std::uint32_t bias = magnitude >= 0x7c00u ? 224u << 23 : 112u << 23;
  const std::uint32_t normal = (magnitude << 13) + bias;
  // Subnormal: magnitude is a count of 2^-24. The low bits of a float in [0.5, 1) count just that.
  const float counted = std::bit_cast<float>(magnitude | (126u << 23)) - 0.5f;
  const std::uint32_t subnormal = std::bit_cast<std::uint32_t>(counted);
  return std::bit_cast<float>(sign | (magnitude < 0x0400u ? subnormal : normal));
}

template <typename T>
T from_float(float value);

template <typename T>
T from_float(double value);

template <>
inline float from_float<float>(float value) {
  return value;
}

template <>
inline double from_float<double>(double value) {
  return value;
}

template <>
inline BFloat16 from_float<BFloat16>(float value) {
  const std::uint32_t bits = std::bit_cast<std::uint32_t>(value);
  const std::uint32_t rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
  const std::uint32_t quiet_nan = (bits >> 16) | 0x0040u;
  const bool is_nan = (bits & 0x7fffffffu) > 0x7f800000u;
  return {static_cast<std::uint16_t>(is_nan ? quiet_nan : rounded)};
}

template <>
inline Float16 from_float<Float16>(float value) {
  const std::uint32_t bits = std::bit_cast<std::uint32_t>(value);
  const std::uint32_t sign = (bits >> 16) & 0x8000u;
  const std::uint32_t magnitude = bits & 0x7fffffffu;
  // Normal: round off 13 bits and move the exponent. A carry out of 65504 lands on inf by itself.
  const std::uint32_t normal =
      (magnitude + 0x0fffu + ((magnitude >> 13) & 1u) - (112u << 23)) >> 13;
  // Subnormal (below 2^-14): adding 0.5 makes the adder round to a multiple of 2^-24.
  const float counted = std::bit_cast<float>(magnitude) + 0.5f;
  const std::uint32_t subnormal = std::bit_cast<std::uint32_t>(counted) - (126u << 23);
  std::uint32_t result = magnitude < (113u << 23) ? subnormal : normal;
  result = magnitude >= (143u << 23) ? 0x7c00u : result;  // 2^16 and more, inf
  result = magnitude > 0x7f800000u ? 0x7e00u | ((magnitude >> 13) & 0x01ffu) : result;
  return {static_cast<std::uint16_t>(sign | result)};
}

}  // namespace tandem
