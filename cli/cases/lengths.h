// Drawn sequence lengths: how the tokens of a packed batch are cut into sequences.
#pragma once

#include <cstdint>
#include <vector>

namespace tandem::tools {

struct LengthRule {
  enum class Distribution { kEqual, kLogUniform };
  Distribution distribution = Distribution::kEqual;
  std::int64_t sequences = 1;
  double smallest = 1, largest = 1;  // for kLogUniform, before scaling
};

/// Draws cu_seqlens [sequences+1], from 0 to `tokens`.
///
/// kEqual: lengths that differ by at most one. kLogUniform: logarithms uniform in
/// [smallest,largest], then scaled to the sum; no sequence is empty, so there must be at least as
/// many tokens as sequences.
std::vector<std::int32_t> draw_cu_seqlens(const LengthRule& rule, std::int64_t tokens,
                                          std::uint64_t seed);

}  // namespace tandem::tools
