// Into how many parts attention's backward cuts the queries that read one key head.
#pragma once

#include "cuda/attention/backward_params.h"

namespace tandem::cuda::attention {

/// The parts by which a call should end soonest, on so many multiprocessors. A block of keys is a
/// CTA's for all queries that see it, so that nothing is added up across CTAs; where blocks are
/// few, or one sees many more queries than others, CTAs would wait for the longest. Parts are CTAs'
/// of their own, and what they have of dk and dv is added up behind them.
BackwardParts choose_parts(const AttentionForwardProblem& problem, const BackwardTile& tile,
                           int multiprocessors);

}  // namespace tandem::cuda::attention
