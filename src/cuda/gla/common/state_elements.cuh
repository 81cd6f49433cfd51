// A warpgroup's tile of the transposed state, in registers, and the state [K,V] in device memory.
#pragma once

#include "cuda/gla/common/state_strides.h"
#include "cuda/parts/fragment.cuh"

namespace tandem::cuda::gla {

/// Where a warpgroup's tile St [64 of V, 2 * kCount of K] lies in a state.
struct StateTile {
  int K;
  int V;
  StateStrides strides;
  int first_key;
  int first_value;

  /// Calls visit(accumulator index, offset into the state) for this thread's elements that exist.
  template <int kCount, class Visit>
  __device__ void for_each(Visit visit) const {
    int key = first_key + fragment_column(0);
    const int value = first_value + fragment_row();
#pragma unroll
    for (int i = 0; i < kCount; i += 4, key += 8) {
      // why: keeps the compiler from preparing all addresses at once, which would spill registers.
      asm volatile("" : "+r"(key));
#pragma unroll
      for (int k = 0; k < 4; ++k) {
        const int own_key = key + k % 2;
        const int own_value = value + k / 2 * 8;
        if (own_key < K && own_value < V) {
          visit(i + k, own_key * strides.key + own_value * strides.value);
        }
      }
    }
  }
};

template <int kCount>
__device__ void load_state(float (&state)[kCount], const float* from, const StateTile& tile) {
  tile.for_each<kCount>([&](int i, int offset) { state[i] = from[offset]; });
}

template <int kCount>
__device__ void store_state(const float (&state)[kCount], float* to, const StateTile& tile) {
  tile.for_each<kCount>([&](int i, int offset) { to[offset] = state[i]; });
}

/// Loads the decayed Vt of a chunk as an A operand: 64 columns of V, scaled by each token's factor;
/// contraction steps [kFirst, kLast).
template <class Element, int kFirst, int kLast, int kChunk>
__device__ void load_decayed_values(std::uint32_t (&operand)[kChunk / 16][4], const char* v_panel,
                                    const float (&factors)[kChunk]) {
#pragma unroll
  for (int step = kFirst; step < kLast; ++step) {
    load_columns(v_panel, step, operand[step]);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int token = fragment_column(2 * step + i / 2);
      const float2 factor = *reinterpret_cast<const float2*>(&factors[token]);
      const float2 pair = unpack_pair<Element>(operand[step][i]);
      operand[step][i] = pack_pair<Element>(pair.x * factor.x, pair.y * factor.y);
    }
  }
}

}  // namespace tandem::cuda::gla
