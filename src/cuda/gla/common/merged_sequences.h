// What the plan of a backward of packed sequences as one knows beside the problem.
#pragma once

#include <cstdint>
#include <limits>

namespace tandem::cuda::gla {

struct MergedSequences {
  // Tokens back that a state is expected to depend on.
  std::int64_t reach = std::numeric_limits<std::int64_t>::max();
  std::int64_t bytes = 0;  // of the workspace, that merging takes
};

}  // namespace tandem::cuda::gla
