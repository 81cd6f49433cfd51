// Heads of 64, 128 or 256 columns, turned whole or not at all, as most models have them: which
// block of 8 columns belongs to which head and pair is known when this is compiled, all heads of a
// tile share what is loaded, and nothing is computed for blocks that turn out not to be a pair.
#pragma once

#include "cuda/gemm/epilogue.cuh"
#include "cuda/projection/rope.cuh"

namespace tandem::cuda::projection {

/// Heads of kHeadBlocks blocks in a fragment of kColumns, which they fill. Sums and products are
/// those of any other heads, in their order.
template <class Element, int kColumns, int kHeadBlocks>
struct RegularHeads {
  static constexpr int kHeads = kColumns / 8 / kHeadBlocks;
  static constexpr int kLoaded = 4;  // blocks, whose loads are under way together
  static_assert(kHeads > 0 && kHeadBlocks % (2 * kLoaded) == 0);

  const gemm::Fragment<kColumns>& fragment;

  /// A thread's two values of a block, of its first or second row.
  __device__ float* at(int half, int head, int block) const {
    return fragment.values + 4 * (head * kHeadBlocks + block) + 2 * half;
  }

  /// Divides each head by the root of its mean square and multiplies it by the weight; calls
  /// keep(half, head, rstd).
  template <class Keep>
  __device__ void normalize(const HeadSegment& heads, const Keep& keep) const {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float rstd[kHeads];
#pragma unroll
      for (int head = 0; head < kHeads; ++head) {
        float sum = 0.0f;
#pragma unroll
        for (int block = 0; block < kHeadBlocks; ++block) {
          const float* z = at(half, head, block);
          sum = fmaf(z[0], z[0], fmaf(z[1], z[1], sum));
        }
        constexpr float kShare = 1.0f / (8 * kHeadBlocks);
        rstd[head] = rsqrtf(fmaf(gemm::sum_of_quad(sum), kShare, heads.eps));
        keep(half, head, rstd[head]);
      }
      const void* weight = heads.norm_weight;
      // why: what is loaded would be kept for the other row, in more registers than there are.
      asm volatile("" : "+l"(weight));
#pragma unroll
      for (int first = 0; first < kHeadBlocks; first += kLoaded) {
        float weights[kLoaded][2];
        load<1>(weights, weight, heads.norm_fp32, 8 * first + fragment_column(0));
#pragma unroll
        for (int i = 0; i < kLoaded; ++i) {
#pragma unroll
          for (int head = 0; head < kHeads; ++head) {
            float* z = at(half, head, first + i);
            z[0] *= rstd[head] * weights[i][0];
            z[1] *= rstd[head] * weights[i][1];
          }
        }
      }
    }
  }

  /// Turns each head's halves, by tables that lie at pairs.
  __device__ void rotate_halves(const RopeParams& rope, int rows) const {
    constexpr int kPairs = kHeadBlocks / 2;  // of blocks
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int row = min(fragment.row + fragment_row() + 8 * half, rows - 1);
      const RopeRow<Element> table(rope, rope_position(rope, row));
#pragma unroll
      for (int first = 0; first < kPairs; first += kLoaded) {
        float cos[kLoaded][2], sin[kLoaded][2];
        load<2>(cos, table.cos, rope.fp32, 8 * first + fragment_column(0));
        load<2>(sin, table.sin, rope.fp32, 8 * first + fragment_column(0));
#pragma unroll
        for (int i = 0; i < kLoaded; ++i) {
#pragma unroll
          for (int head = 0; head < kHeads; ++head) {
            float* a = at(half, head, first + i);
            float* b = at(half, head, first + i + kPairs);
            rotate(a[0], b[0], cos[i][0], sin[i][0]);
            rotate(a[1], b[1], cos[i][1], sin[i][1]);
          }
        }
      }
    }
  }

 private:
  /// Loads the elements of blocks, two of each, the first at `column`. kAlign: of how many elements
  /// addresses are multiples.
  template <int kAlign>
  static __device__ void load(float (&values)[kLoaded][2], const void* from, bool fp32,
                              int column) {
    if (fp32) {
      load_as<kAlign>(values, static_cast<const float*>(from) + column);
    } else {
      load_as<kAlign>(values, static_cast<const Element*>(from) + column);
    }
  }
  template <int kAlign, class Stored>
  static __device__ void load_as(float (&values)[kLoaded][2], const Stored* from) {
    struct alignas(kAlign * sizeof(Stored)) Two {
      Stored values[2];
    };
    Two blocks[kLoaded];
#pragma unroll
    for (int i = 0; i < kLoaded; ++i) blocks[i] = *reinterpret_cast<const Two*>(from + 8 * i);
#pragma unroll
    for (int i = 0; i < kLoaded; ++i) {
      values[i][0] = static_cast<float>(blocks[i].values[0]);
      values[i][1] = static_cast<float>(blocks[i].values[1]);
    }
  }
};

}  // namespace tandem::cuda::projection
