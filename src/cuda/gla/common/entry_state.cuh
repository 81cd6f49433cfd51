// The state that a walk or a segment begins with, from device memory to registers.
#pragma once

#include <cutlass/arch/memory.h>

#include "cuda/gla/common/state_elements.cuh"

namespace tandem::cuda::gla {

/// Loads a tile of a state, zeros outside and where `from` is null. No branch, so that all loads
/// are under way at once: one after the other they take 0.7 us each.
template <int kCount>
__device__ void load_entry_state(float (&state)[kCount], const float* from, const StateTile& tile) {
  int key = tile.first_key + fragment_column(0);
  const int value = tile.first_value + fragment_row();
#pragma unroll
  for (int i = 0; i < kCount; i += 4, key += 8) {
    asm volatile("" : "+r"(key));  // as in StateTile::for_each
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      const int own_key = key + k % 2, own_value = value + k / 2 * 8;
      state[i + k] = 0.0f;  // what a load that is not made leaves
      const bool exists = from != nullptr && own_key < tile.K && own_value < tile.V;
      cutlass::arch::global_load<float, 4>(
          state[i + k], from + own_key * tile.strides.key + own_value * tile.strides.value, exists);
    }
  }
}

}  // namespace tandem::cuda::gla
