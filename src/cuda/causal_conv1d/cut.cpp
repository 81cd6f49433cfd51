// How a call of causal_conv1d is cut over the device. Host only.
#include <algorithm>
#include <bit>
#include <limits>

#include "cuda/causal_conv1d/params.h"
#include "cuda/runtime/plan.h"

namespace tandem::cuda::causal_conv1d {

Cut cut_tokens(const CausalConv1dForwardProblem& problem, int threads, int channels, bool states,
               std::int64_t blocks_at_once) {
  // A thread's taps and first tokens take the time of kStart tokens of its walk.
  constexpr std::int64_t kStart = 8, kGroup = 8, kMostWaves = 8;
  const std::int64_t vectors = ceil_div(problem.D, channels);
  Cut base;
  base.threads = threads;
  base.columns = static_cast<int>(
      std::bit_ceil(static_cast<std::uint64_t>(std::min<std::int64_t>(vectors, kMostColumns))));
  base.channel_blocks = static_cast<int>(ceil_div(vectors, base.columns));
  if (states) base.state_blocks = ceil_div(problem.N * vectors, threads);
  // The longest strips that fill some waves of CTAs: those of them that end first.
  Cut best;
  std::int64_t best_cost = std::numeric_limits<std::int64_t>::max();
  for (std::int64_t waves = 1; waves <= kMostWaves; ++waves) {
    Cut cut = base;
    const std::int64_t strips =
        waves * blocks_at_once / base.channel_blocks * base.strips_per_block();
    const std::int64_t per_row =
        std::max<std::int64_t>(strips / std::max<std::int64_t>(problem.B, 1), 1);
    cut.strip_tokens = static_cast<int>(
        std::max<std::int64_t>(ceil_div(ceil_div(problem.T, per_row), kGroup), 1) * kGroup);
    cut.strips_per_row = static_cast<int>(ceil_div(problem.T, cut.strip_tokens));
    cut.strips = problem.B * cut.strips_per_row;
    cut.token_blocks = ceil_div(cut.strips, cut.strips_per_block());
    const std::int64_t cost = ceil_div(cut.token_blocks * cut.channel_blocks, blocks_at_once) *
                              (cut.strip_tokens + kStart);
    if (cost < best_cost) {
      best = cut;
      best_cost = cost;
    }
  }
  return best;
}

}  // namespace tandem::cuda::causal_conv1d
