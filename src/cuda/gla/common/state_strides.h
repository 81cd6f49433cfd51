// How a state lies in device memory.
#pragma once

#include <cstdint>

namespace tandem::cuda::gla {

/// Elements between neighbours of a state [K,V], or of [V,K] for a walk with k and v exchanged, and
/// between heads' states. A walk over some columns of V has those of the whole state.
struct StateStrides {
  int key;
  int value;
  std::int64_t head;
};

}  // namespace tandem::cuda::gla
