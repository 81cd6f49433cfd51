// How walks for the states at both ends of pairs of chunks (groups/states.cuh) or of spans
// (wide/states.cuh) are spread over CTAs.
#pragma once

#include <cstdint>

namespace tandem::cuda::gla {

/// Walks of a CTA where `count` of them share k: several then share its tiles, too.
constexpr int kManyStateWalks = 4;
constexpr int state_walks_of_cta(int count) { return count > 2 ? kManyStateWalks : 1; }

/// Walks at once on a multiprocessor.
constexpr int state_walks_at_once(int of_cta) { return of_cta == 1 ? 2 : of_cta; }

/// CTAs of `count` walks that share k, and the first walk of one of them, or of the one behind all.
constexpr int state_walk_ctas(int count, int of_cta) { return (count + of_cta - 1) / of_cta; }
constexpr int first_state_walk(int cta, int count, int of_cta) {
  return static_cast<int>(std::int64_t{cta} * count / state_walk_ctas(count, of_cta));
}

}  // namespace tandem::cuda::gla
