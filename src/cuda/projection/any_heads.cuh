// Heads of any width that lie whole in a tile of up to 128 columns, turned in part or in pairs of
// neighbours, too: which block of 8 columns ends a head, or begins a pair, is told by bits that the
// host makes. Unlike in regular_heads.cuh, each block is computed as if it might be either.
#pragma once

#include "cuda/gemm/epilogue.cuh"
#include "cuda/projection/rope.cuh"

namespace tandem::cuda::projection {

// What tables and weights hold is loaded for so many blocks before the first of it is used, and
// where it is not wanted, too: a load behind a branch would wait for the one before it.
constexpr int kBlocksLoaded = 8;

/// Makes the compiler compute what depends on a value again, where it would keep it for another
/// row, in more registers than there are.
__device__ inline std::uint32_t forget(std::uint32_t value) {
  asm volatile("" : "+r"(value));
  return value;
}

/// The column within its head of a block of 8, by the tile's ends of heads.
__device__ inline int column_in_head(std::uint32_t ends, int block) {
  const std::uint32_t before = ends & ((1u << block) - 1);
  return 8 * (block - (32 - __clz(static_cast<int>(before))));
}

/// Keeps rstd of a row's head where it is wanted.
template <int kColumns>
__device__ void keep_rstd(const HeadsParams& params, const ForwardSegment& segment,
                          const gemm::Fragment<kColumns>& fragment, int half, int head,
                          float rstd) {
  const int row = fragment.row + fragment_row() + 8 * half;
  if (segment.inverse_norm.data == nullptr || threadIdx.x % 4 != 0 || row >= params.rows) return;
  static_cast<float*>(segment.inverse_norm.data)[row * segment.inverse_norm.row_stride + head] =
      rstd;
}

/// Divides each head of a fragment by the root of its mean square and multiplies it by the weight.
template <class Config, class Weight>
__device__ void rms_normalize_heads(const HeadsParams& params, const ForwardSegment& segment,
                                    const HeadSegment& heads,
                                    const gemm::Fragment<Config::kColumns>& fragment) {
  constexpr int kBlocks = Config::kColumns / 8;
  const auto* weight = static_cast<const Weight*>(heads.norm_weight) + fragment_column(0);
  const float share = 1.0f / static_cast<float>(segment.head_width);
  const int first_head = fragment.column / segment.head_width;
  const int count = params.columns[fragment.segment] / segment.head_width - first_head;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const std::uint32_t ends = forget(segment.head_ends);
    float sums[kBlocks];  // of a head's squares up to this block
#pragma unroll
    for (int block = 0; block < kBlocks; ++block) {
      const float* z = fragment.values + 4 * block + 2 * half;
      const float before = block == 0 || (ends >> (block - 1) & 1) ? 0.0f : sums[block - 1];
      sums[block] = fmaf(z[0], z[0], fmaf(z[1], z[1], before));
    }
    float rstd = 0.0f;
#pragma unroll
    for (int first = kBlocks - kBlocksLoaded; first >= 0; first -= kBlocksLoaded) {
      float weights[kBlocksLoaded][2];
#pragma unroll
      for (int i = 0; i < kBlocksLoaded; ++i) {
        const int column = column_in_head(ends, first + i);
        weights[i][0] = static_cast<float>(weight[column]);
        weights[i][1] = static_cast<float>(weight[column + 1]);
      }
#pragma unroll
      for (int i = kBlocksLoaded - 1; i >= 0; --i) {
        const int block = first + i;
        if (ends >> block & 1) {
          rstd = rsqrtf(fmaf(gemm::sum_of_quad(sums[block]), share, heads.eps));
          const int head = __popc(ends & ((1u << block) - 1));
          if (head < count) keep_rstd(params, segment, fragment, half, first_head + head, rstd);
        }
        // Columns behind the last whole head are of no one: they become 0.
        float* z = fragment.values + 4 * block + 2 * half;
        z[0] *= rstd * weights[i][0];
        z[1] *= rstd * weights[i][1];
      }
    }
  }
}

/// Turns the pair (a, b) where it is `wanted`. why not by a branch: see kBlocksLoaded.
__device__ inline void rotate_if(bool wanted, float& a, float& b, float cos, float sin) {
  float first = a, second = b;
  rotate(first, second, cos, sin);
  a = wanted ? first : a;
  b = wanted ? second : b;
}

/// Turns pairs of blocks that lie kApart from each other.
template <class Config, bool kFp32, int kApart>
__device__ void rotate_halves(const HeadsParams& params, const ForwardSegment& segment,
                              const HeadSegment& heads,
                              const gemm::Fragment<Config::kColumns>& fragment) {
  constexpr int kPairs = Config::kColumns / 8 - kApart;  // that may be
  using Row = RopeRow<typename Config::Element>;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int row = min(fragment.row + fragment_row() + 8 * half, params.rows - 1);
    const Row table(params.rope, rope_position(params.rope, row));
    const std::uint32_t ends = forget(segment.head_ends);
#pragma unroll
    for (int first = 0; first < kPairs; first += kBlocksLoaded) {
      float2 cos[kBlocksLoaded], sin[kBlocksLoaded];
#pragma unroll
      for (int i = 0; i < kBlocksLoaded && first + i < kPairs; ++i) {
        const int column = column_in_head(ends, first + i);
        const int j = min(column, 8 * kApart - 8) + fragment_column(0);
        cos[i] = Row::template two<kFp32>(table.cos, j);
        sin[i] = Row::template two<kFp32>(table.sin, j);
      }
#pragma unroll
      for (int i = 0; i < kBlocksLoaded && first + i < kPairs; ++i) {
        const bool turns = heads.first_halves >> (first + i) & 1;
        float* a = fragment.values + 4 * (first + i) + 2 * half;
        float* b = a + 4 * kApart;
        rotate_if(turns, a[0], b[0], cos[i].x, sin[i].x);
        rotate_if(turns, a[1], b[1], cos[i].y, sin[i].y);
      }
    }
  }
}

/// Turns neighbours.
template <class Config, bool kFp32>
__device__ void rotate_neighbours(const HeadsParams& params, const ForwardSegment& segment,
                                  const gemm::Fragment<Config::kColumns>& fragment) {
  using Row = RopeRow<typename Config::Element>;
  const int width = params.rope.width;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int row = min(fragment.row + fragment_row() + 8 * half, params.rows - 1);
    const Row table(params.rope, rope_position(params.rope, row));
    const std::uint32_t ends = forget(segment.head_ends);
#pragma unroll
    for (int first = 0; first < Config::kColumns / 8; first += kBlocksLoaded) {
      int columns[kBlocksLoaded];
      float cos[kBlocksLoaded], sin[kBlocksLoaded];
#pragma unroll
      for (int i = 0; i < kBlocksLoaded; ++i) {
        columns[i] = column_in_head(ends, first + i) + fragment_column(0);
        const int j = min(columns[i], width - 2) / 2;
        cos[i] = Row::template one<kFp32>(table.cos, j);
        sin[i] = Row::template one<kFp32>(table.sin, j);
      }
#pragma unroll
      for (int i = 0; i < kBlocksLoaded; ++i) {
        float* z = fragment.values + 4 * (first + i) + 2 * half;
        rotate_if(columns[i] < width, z[0], z[1], cos[i], sin[i]);
      }
    }
  }
}

template <class Config, bool kFp32>
__device__ void rotate(const HeadsParams& params, const ForwardSegment& segment,
                       const HeadSegment& heads, const gemm::Fragment<Config::kColumns>& fragment) {
  if (params.rope.interleaved) return rotate_neighbours<Config, kFp32>(params, segment, fragment);
  switch (params.rope.width / 16) {
    case 1: return rotate_halves<Config, kFp32, 1>(params, segment, heads, fragment);
    case 2: return rotate_halves<Config, kFp32, 2>(params, segment, heads, fragment);
    case 4: return rotate_halves<Config, kFp32, 4>(params, segment, heads, fragment);
    case 8: return rotate_halves<Config, kFp32, 8>(params, segment, heads, fragment);
  }
}

/// Finishes heads of any width that lie whole in the tile.
template <class Config>
__device__ void finish_any(const HeadsParams& params, const ForwardSegment& segment,
                           const HeadSegment& heads,
                           const gemm::Fragment<Config::kColumns>& fragment) {
  if (heads.norm_weight != nullptr && heads.norm_fp32) {
    rms_normalize_heads<Config, float>(params, segment, heads, fragment);
  } else if (heads.norm_weight != nullptr) {
    rms_normalize_heads<Config, typename Config::Element>(params, segment, heads, fragment);
  }
  if (!heads.rotates) return;
  if (params.rope.fp32) {
    rotate<Config, true>(params, segment, heads, fragment);
  } else {
    rotate<Config, false>(params, segment, heads, fragment);
  }
}

}  // namespace tandem::cuda::projection
