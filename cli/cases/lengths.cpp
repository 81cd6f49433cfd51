#include "cli/cases/lengths.h"

#include <cmath>

#include "cli/cases/random.h"

namespace tandem::tools {
namespace {

std::vector<std::int64_t> log_uniform_lengths(const LengthRule& rule, std::int64_t tokens,
                                              std::uint64_t seed) {
  const RandomStream random(seed, "lengths");
  std::vector<double> drawn;
  double sum = 0;
  for (std::int64_t i = 0; i < rule.sequences; ++i) {
    drawn.push_back(rule.smallest * std::pow(rule.largest / rule.smallest, random.uniform(i)));
    sum += drawn.back();
  }
  // Gives each sequence one token, and the other tokens in proportion; what rounding leaves goes to
  // the first sequences.
  const double scale = static_cast<double>(tokens - rule.sequences) / sum;
  std::vector<std::int64_t> lengths;
  std::int64_t left = tokens;
  for (const double length : drawn) {
    lengths.push_back(1 + static_cast<std::int64_t>(length * scale));
    left -= lengths.back();
  }
  for (std::int64_t i = 0; i < left; ++i) ++lengths[i];
  return lengths;
}

}  // namespace

std::vector<std::int32_t> draw_cu_seqlens(const LengthRule& rule, std::int64_t tokens,
                                          std::uint64_t seed) {
  std::vector<std::int32_t> offsets = {0};
  if (rule.distribution == LengthRule::Distribution::kEqual) {
    for (std::int64_t i = 1; i <= rule.sequences; ++i) {
      offsets.push_back(static_cast<std::int32_t>(i * tokens / rule.sequences));
    }
    return offsets;
  }
  for (const std::int64_t length : log_uniform_lengths(rule, tokens, seed)) {
    offsets.push_back(offsets.back() + static_cast<std::int32_t>(length));
  }
  return offsets;
}

}  // namespace tandem::tools
