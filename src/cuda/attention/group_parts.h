// Into how many parts attention's backward cuts the heads that read one key head.
#pragma once

#include "cuda/attention/backward_params.h"

namespace tandem::cuda::attention {

/// The number of parts by which a call should end soonest, on so many multiprocessors. A block of
/// keys is a CTA's for all heads of its group, so that nothing is added up across CTAs; where
/// blocks are few, or one sees many more queries than others, CTAs would wait for the longest.
/// Parts of a group are CTAs' of their own, and what they have of dk and dv is added up behind
/// them.
int choose_group_parts(const AttentionForwardProblem& problem, const BackwardTile& tile,
                       int multiprocessors);

}  // namespace tandem::cuda::attention
