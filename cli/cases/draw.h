// Values drawn one after the other: the same ones for the same seed.
#pragma once

#include <cmath>
#include <cstdint>
#include <initializer_list>

#include "cli/cases/random.h"

namespace tandem::tools {

class Draw {
 public:
  explicit Draw(std::uint64_t seed) : random_(seed, "draw") {}

  std::int64_t in(std::int64_t least, std::int64_t most) {
    return least + static_cast<std::int64_t>(random_.bits(next_++) %
                                             static_cast<std::uint64_t>(most - least + 1));
  }
  /// As many of 1 to 2 as of 2 to 4 or 100 to 200.
  std::int64_t log_in(std::int64_t least, std::int64_t most) {
    const double ratio = static_cast<double>(most + 1) / static_cast<double>(least);
    const auto value = static_cast<std::int64_t>(static_cast<double>(least) *
                                                 std::pow(ratio, random_.uniform(next_++)));
    return value > most ? most : value;
  }
  bool one_in(std::int64_t n) { return in(1, n) == 1; }

  template <class Value>
  Value of(std::initializer_list<Value> values) {
    return values.begin()[in(0, static_cast<std::int64_t>(values.size()) - 1)];
  }

 private:
  RandomStream random_;
  std::uint64_t next_ = 0;
};

}  // namespace tandem::tools
