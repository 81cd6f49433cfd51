// How a call of causal_conv1d is cut over the device. Host only.
#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

#include "cuda/causal_conv1d/params.h"
#include "cuda/runtime/plan.h"

namespace tandem::cuda::causal_conv1d {
namespace {

/// The CTAs that a multiprocessor has to do, of so many on average.
double load_of(double blocks, const Pace& pace) {
  constexpr double kAlone = 2;  // one by itself is as slow as two beside each other
  if (blocks <= pace.blocks) {
    return std::max(std::lerp(blocks, std::ceil(blocks), pace.uneven), kAlone);
  }
  return std::max(blocks, pace.round * pace.blocks * std::ceil(blocks / pace.blocks));
}

}  // namespace

Cut cut_tokens(const CausalConv1dForwardProblem& problem, const Pace& pace, int channels,
               bool states, int multiprocessors) {
  const std::int64_t vectors = ceil_div(problem.D, channels);
  Cut base;
  // Of several channels a warp has one strip.
  if (channels == 1) {
    base.columns = static_cast<int>(
        std::bit_ceil(static_cast<std::uint64_t>(std::min<std::int64_t>(vectors, base.columns))));
  }
  base.channel_blocks = static_cast<int>(ceil_div(vectors, base.columns));
  if (states) base.state_blocks = ceil_div(problem.N * vectors, kThreads);
  Cut best;
  double best_cost = std::numeric_limits<double>::infinity();
  for (const int strip_tokens : {8, 16, 24, 32, 40, 48, 64, 96, 128}) {
    if (strip_tokens > pace.most_tokens) break;
    Cut cut = base;
    cut.strip_tokens = strip_tokens;
    cut.strips_per_row = static_cast<int>(ceil_div(problem.T, strip_tokens));
    cut.strips = problem.B * cut.strips_per_row;
    cut.token_blocks = ceil_div(cut.strips, cut.strips_per_block());
    const double tokens = static_cast<double>(std::min<std::int64_t>(strip_tokens, problem.T));
    const double blocks =
        static_cast<double>(cut.token_blocks * cut.channel_blocks) / multiprocessors;
    const double cost = (tokens + pace.start) * load_of(blocks, pace);
    if (cost < best_cost) {
      best = cut;
      best_cost = cost;
    }
  }
  return best;
}

}  // namespace tandem::cuda::causal_conv1d
