// Random numbers that depend only on a key and an index: the same with any number of threads, and
// on any machine up to the last bit of its logf, cosf and sinf.
#pragma once

#include <cmath>
#include <cstdint>
#include <numbers>
#include <string_view>

namespace tandem::tools {

class RandomStream {
 public:
  /// Streams of different names, or seeds, are independent.
  RandomStream(std::uint64_t seed, std::string_view name) : key_(mix(seed + 0x9e3779b97f4a7c15u)) {
    for (const char letter : name) key_ = mix(key_ ^ static_cast<unsigned char>(letter));
  }

  std::uint64_t bits(std::uint64_t index) const { return mix(key_ + index * 0x9e3779b97f4a7c15u); }

  std::uint64_t key() const { return key_; }

  /// Returns a number in [0,1), of 24 bits.
  float uniform(std::uint64_t index) const {
    return static_cast<float>(bits(index) >> 40) * 0x1p-24f;
  }

  /// Returns numbers 2 * pair and 2 * pair + 1 of a N(0,1) sequence (Box-Muller).
  void normal_pair(std::uint64_t pair, float values[2]) const {
    const Polar at = polar(pair);
    values[0] = at.radius * std::cos(at.angle);
    values[1] = at.radius * std::sin(at.angle);
  }

  float normal(std::uint64_t index) const {
    const Polar at = polar(index / 2);
    return at.radius * (index % 2 == 0 ? std::cos(at.angle) : std::sin(at.angle));
  }

 private:
  struct Polar {
    float radius, angle;
  };

  Polar polar(std::uint64_t pair) const {
    const std::uint64_t random = bits(pair);
    const float u = (static_cast<float>(random >> 32) + 0.5f) * 0x1p-32f;
    const float angle =
        static_cast<float>(random & 0xffffffu) * (2 * std::numbers::pi_v<float> * 0x1p-24f);
    return {std::sqrt(-2.0f * std::log(std::fmin(u, 1.0f))), angle};
  }

  /// The finaliser of splitmix64.
  static std::uint64_t mix(std::uint64_t x) {
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return x ^ (x >> 31);
  }

  std::uint64_t key_;
};

}  // namespace tandem::tools
