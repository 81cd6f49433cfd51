#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "cli/cases/cases.h"

namespace tandem::tools {

/// What bounds random cases: a definition of some milliseconds.
inline constexpr std::int64_t kLargestRandomCase = std::int64_t{1} << 20;

/// Draws a case of an op in one of its directions: shapes, layouts, decays, states and packed
/// sequences that nobody chose, the same for the same seed. `largest` bounds the product of its
/// axes. Such cases can be written into a table (write_cases) and read back.
Case draw_case(const std::string& op, const std::string& direction, DType dtype,
               std::int64_t largest, std::uint64_t seed);

/// Whether `largest` counts an axis: not those that share what another one has.
bool multiplies(const std::string& axis);

/// Draws N + 1 offsets in [0,T], of which the first may be 0 and the last T.
std::vector<std::int32_t> draw_offsets(Draw& draw, std::int64_t T, std::int64_t N);

}  // namespace tandem::tools
