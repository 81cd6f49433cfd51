// How walks for the states at both ends of pairs of chunks (groups/states.cuh) or of spans
// (wide/states.cuh) are spread over CTAs.
#pragma once

#include <cstdint>

namespace tandem::cuda::gla {

/// Walks at once on a multiprocessor, where a CTA has so many.
constexpr int state_walks_at_once(int of_cta) { return of_cta == 1 ? 2 : of_cta; }

/// Walks of a CTA, where `count` of a launch's `walks` share k: several share its tiles, too,
/// unless all have room alone, which takes less time for each.
constexpr int kManyStateWalks = 4;
constexpr int state_walks_of_cta(std::int64_t walks, std::int64_t count, int multiprocessors) {
  const bool have_room = walks <= std::int64_t{state_walks_at_once(1)} * multiprocessors;
  return count > 2 && !have_room ? kManyStateWalks : 1;
}

/// Microseconds that a walk takes for 64 tokens, measured on an H200
/// (docs/ops/gla_backward.log.md).
constexpr double state_walk_chunk_time(int of_cta) { return of_cta == 1 ? 0.65 : 1.1; }

/// CTAs of `count` walks that share k, and the first walk of one of them, or of the one behind all.
constexpr int state_walk_ctas(int count, int of_cta) { return (count + of_cta - 1) / of_cta; }
constexpr int first_state_walk(int cta, int count, int of_cta) {
  return static_cast<int>(std::int64_t{cta} * count / state_walk_ctas(count, of_cta));
}

}  // namespace tandem::cuda::gla
