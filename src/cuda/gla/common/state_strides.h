// How a state lies in device memory.
#pragma once

namespace tandem::cuda::gla {

/// Elements between neighbours of a state [K,V], or of [V,K] for a walk with k and v exchanged.
struct StateStrides {
  int key;
  int value;
};

}  // namespace tandem::cuda::gla
