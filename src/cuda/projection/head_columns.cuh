// Eight neighbouring columns of heads that are turned, forth or back: a lane's, in kernels whose
// neighbouring lanes take neighbouring columns of a head.
#pragma once

#include "cuda/parts/eight.cuh"
#include "cuda/projection/rope.cuh"

namespace tandem::cuda::projection {

/// Lanes of a warp that share a head: a power of two.
__host__ __device__ inline int lanes_of_head(int head_width) {
  int lanes = 1;
  while (lanes < head_width / 8) lanes *= 2;
  return lanes;
}

/// What eight columns are turned by: v cos + other sin.
struct Turn {
  float cos[8];
  float sin[8];  // with the sign that it has for each
};

/// `kEights`: pairs are half of a multiple of 16 columns apart, so that the others of eight
/// neighbours are neighbours, too.
template <class Element, bool kEights>
struct HeadColumns {
  const RopeParams& rope;
  const HeadSegment& heads;
  const int head_width;
  const int column;  // of a head, the first
  const bool inside = column < head_width;
  // Of these columns, those that are turned.
  const int turned = heads.rotates && inside ? min(max(rope.width - column, 0), 8) : 0;
  const int apart = !kEights && rope.interleaved ? 1 : rope.width / 2;

  /// Whether a column is the first of its pair, and by how much the other lies behind it.
  __device__ bool is_first(int at) const {
    return !kEights && rope.interleaved ? at % 2 == 0 : at < apart;
  }
  __device__ int to_other(int at) const { return is_first(at) ? apart : -apart; }

  /// Loads the norm's weight.
  __device__ void load_weight(float (&weight)[8]) const {
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      weight[i] = inside ? load_norm_weight<Element>(heads, column + i) : 0.0f;
    }
  }

  /// Loads what a row's heads are turned by, `back` or forth.
  __device__ void load(Turn& turn, std::int64_t row, bool back) const {
    if (turned == 0) return;
    const RopeRow<Element> table(rope, rope_position(rope, static_cast<int>(row)));
    if constexpr (kEights) {
      const int pair = is_first(column) ? column : column - apart;
      cuda::load_eight<Element>(table.cos, table.fp32, pair, 8, turn.cos);
      cuda::load_eight<Element>(table.sin, table.fp32, pair, 8, turn.sin);
#pragma unroll
      for (float& sin : turn.sin) sin = is_first(column) == back ? sin : -sin;
    } else {
#pragma unroll
      for (int i = 0; i < 8; ++i) {
        if (i >= turned) continue;
        const int at = column + i;
        const float2 one = table.one(rope.interleaved ? at / 2 : is_first(at) ? at : at - apart);
        turn.cos[i] = one.x;
        turn.sin[i] = is_first(at) == back ? one.y : -one.y;
      }
    }
  }

  /// Turns values, whose pairs' others another lane has, or this one, or load(column). A whole
  /// warp.
  template <class Load>
  __device__ void apply(const Turn& turn, const Load& load, float (&values)[8]) const {
    if (!heads.rotates) return;
    float other[8];
    if constexpr (kEights) {
      const int lane = threadIdx.x % 32, from = lane + (turned > 0 ? to_other(column) / 8 : 0);
#pragma unroll
      for (int i = 0; i < 8; ++i) other[i] = __shfl_sync(0xFFFFFFFFu, values[i], from);
    } else {
#pragma unroll
      for (int i = 0; i < 8; ++i) {
        other[i] = rope.interleaved ? values[i ^ 1]
                   : i < turned     ? load(column + i + to_other(column + i))
                                    : 0.0f;
      }
    }
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      if (i < turned) values[i] = values[i] * turn.cos[i] + other[i] * turn.sin[i];
    }
  }
};

/// Adds up over the lanes of a head.
__device__ inline float sum_of_head(float value, int lanes) {
  for (int distance = lanes / 2; distance > 0; distance /= 2) {
    value += __shfl_xor_sync(0xFFFFFFFFu, value, distance);
  }
  return value;
}

/// Whether HeadColumns takes eights.
inline bool in_eights(const RopeParams& rope) { return !rope.interleaved && rope.width % 16 == 0; }

}  // namespace tandem::cuda::projection
