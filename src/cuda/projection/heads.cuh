// projection_heads_kernel: products whose heads end in a weighted RMS norm and a rotation (RoPE),
// on the fp32 accumulators, before the only write.
//
//   z = x W^T + bias     kept in 16 bits for the backward of a norm, before anything else
//   y = z rstd weight    rstd = 1 / sqrt(mean of z^2 over the head + eps), kept too
//   out = y turned       pairs (j, j + R/2) or (2j, 2j+1) of the first R columns of a head
//
// Heads lie whole in a tile, as those of l2_normalize (forward.cuh): a thread has of its rows two
// columns of each block of 8. Neighbours are in one thread, and so are columns R/2 apart where that
// is a power of two of blocks: then what a pair needs is in registers, whose places are known when
// this is compiled. Heads of the usual widths are finished by regular_heads.cuh, and tiles of 256
// columns take no others; those of any width by any_heads.cuh. Segments that neither rotate nor
// normalise are written as they are.
//
// A tile leaves z in fp32 to projection_finish_kernel, a warp per row and some heads, where heads
// are wider than the tile or not for its columns, R is another width, or the tables' rows do not
// lie at pairs.
//
// Of few rows a lane has four neighbouring columns of a row, and its pairs' others come by shuffle.
#pragma once

#include <algorithm>

#include "cuda/gemm/bias.cuh"
#include "cuda/gemm/loop.cuh"
#include "cuda/gemm/target.cuh"
#include "cuda/parts/warp_sums.cuh"
#include "cuda/projection/any_heads.cuh"
#include "cuda/projection/few_rows.cuh"
#include "cuda/projection/forward.cuh"
#include "cuda/projection/head_columns.cuh"
#include "cuda/projection/regular_heads.cuh"

namespace tandem::cuda::projection {

/// The width of a segment's heads where they are regular (regular_heads.cuh), else 0.
__device__ inline int regular_width(const HeadsParams& params, const ForwardSegment& segment,
                                    const HeadSegment& heads) {
  const bool turned_whole = !params.rope.interleaved && params.rope.width == segment.head_width;
  return !heads.rotates || turned_whole ? segment.head_width : 0;
}

/// Finishes heads of 8 kHeadBlocks columns that are regular.
template <class Config, int kHeadBlocks>
__device__ void finish_regular(const HeadsParams& params, const ForwardSegment& segment,
                               const HeadSegment& heads,
                               const gemm::Fragment<Config::kColumns>& fragment) {
  const RegularHeads<typename Config::Element, Config::kColumns, kHeadBlocks> regular{fragment};
  if (heads.norm_weight != nullptr) {
    const int first_head = fragment.column / (8 * kHeadBlocks);
    const int count = params.columns[fragment.segment] / (8 * kHeadBlocks) - first_head;
    regular.normalize(heads, [&](int half, int head, float rstd) {
      if (head < count) keep_rstd(params, segment, fragment, half, first_head + head, rstd);
    });
  }
  fence_registers(fragment.values);  // else ptxas (13.0) spills
  if (heads.rotates) regular.rotate_halves(params.rope, params.rows);
}

/// Adds the bias, finishes the heads and writes.
template <class Config>
__device__ void finish_heads(const HeadsParams& params,
                             const gemm::Fragment<Config::kColumns>& fragment,
                             gemm::PanelStore<Config>& store) {
  const ForwardSegment& segment = params.segments[fragment.segment];
  const HeadSegment& heads = params.heads[fragment.segment];
  const int end = fragment.column + params.tile_columns[fragment.segment];
  gemm::add_bias<typename Config::Element>(segment.bias, segment.bias_fp32,
                                           params.columns[fragment.segment], fragment);
  if (segment.slope.matrix.data != nullptr) write(segment.slope, params, end, fragment, store);
  const int width = regular_width(params, segment, heads);
  if (width == 64) {
    finish_regular<Config, 8>(params, segment, heads, fragment);
  } else if (width == 128) {
    finish_regular<Config, 16>(params, segment, heads, fragment);
  } else if constexpr (Config::kColumns <= 128) {
    finish_any<Config>(params, segment, heads, fragment);
  } else if (width == 256) {
    finish_regular<Config, 32>(params, segment, heads, fragment);
  }
  write(segment.out, params, end, fragment, store);
}

template <class Element, int kColumns>
__global__ __launch_bounds__(
    ForwardConfig<Element, kColumns>::kThreads,
    1) void projection_heads_kernel(const __grid_constant__ HeadsParams params) {
  extern __shared__ __align__(1024) char shared_memory[];
  using Config = ForwardConfig<Element, kColumns>;
  auto& shared = *reinterpret_cast<gemm::Shared<Config>*>(shared_memory);
  gemm::run<Config>(
      params, shared,
      [&](const gemm::Fragment<Config::kColumns>& fragment, gemm::PanelStore<Config>& store) {
        finish_heads(params, fragment, store);
      });
}

/// What a thread's four columns of a row are turned by, as the tables hold it: two of each in a
/// word where these are of 16 bits. why words: taken apart they would be waited for where they are
/// loaded.
struct RowTurn {
  uint2 cos[2] = {}, sin[2] = {};
};

/// Four neighbouring columns of heads, a thread's of rows of few: adds the bias, normalizes, turns
/// and writes.
template <class Element>
struct HeadRows {
  RowSegment segment;
  HeadSegment heads;
  const RopeParams& rope;
  const int lane = threadIdx.x % 32;
  const int column = 4 * (lane % max(segment.head_width / 4, 1));  // of the head, the first
  const int turned = heads.rotates ? min(max(rope.width - column, 0), 4) : 0;
  const bool is_first = column < rope.width / 2;  // of the columns of a half
  float weight[4] = {};

  __device__ HeadRows(const HeadsParams& params, const gemm::FewRowsTile& tile)
      : segment(begin_rows<Element>(params, tile)),
        heads(gemm::in_registers(params.heads[tile.segment])),
        rope(params.rope) {
    if (heads.norm_weight == nullptr) return;
#pragma unroll
    for (int i = 0; i < 4; ++i) weight[i] = load_norm_weight<Element>(heads, column + i);
  }

  template <class Rows>
  __device__ void finish(const Rows& rows) const {
    const auto load = [&](int row) { return load_turn(row); };
    rows.template each_loaded<4>(load, [&](const gemm::RowPiece& piece, const RowTurn& turn) {
      segment.bias.add_to(piece.values);
      if (segment.slope.columns != nullptr) {
        gemm::write<Element>(segment.slope, piece.row, piece.values);
      }
      if (heads.norm_weight != nullptr) normalize(piece);
      if (heads.rotates) apply(turn, piece.values);
      gemm::write<Element>(segment.out, piece.row, piece.values);
    });
  }

 private:
  /// Divides each head of a row by the root of its mean square and multiplies it by the weight.
  __device__ void normalize(const gemm::RowPiece& piece) const {
    const float rstd = inverse_norm_of_head(segment, piece, [&](float sum) {
      return rsqrtf(sum / static_cast<float>(segment.head_width) + heads.eps);
    });
#pragma unroll
    for (int i = 0; i < 4; ++i) piece.values[i] *= rstd * weight[i];
  }

  /// An element of a table, in a word.
  __device__ std::uint32_t load_one(const void* table, int j) const {
    if (rope.fp32) return static_cast<const std::uint32_t*>(table)[j];
    return static_cast<const std::uint16_t*>(table)[j];
  }
  /// Elements j and j+1, of a table that is read in pairs.
  __device__ uint2 load_two(const void* table, int j) const {
    if (rope.fp32) return reinterpret_cast<const uint2*>(table)[j / 2];
    return {reinterpret_cast<const std::uint32_t*>(table)[j / 2], 0};
  }
  __device__ RowTurn load_turn(int row) const {
    RowTurn turn;
    if (turned == 0) return turn;
    const RopeRow<Element> table(rope, rope_position(rope, row));
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      if (!rope.interleaved) {
        const int j = column + 2 * i - (is_first ? 0 : rope.width / 2);
        turn.cos[i] = load_two(table.cos, j);
        turn.sin[i] = load_two(table.sin, j);
      } else if (2 * i < turned) {
        turn.cos[i].x = load_one(table.cos, column / 2 + i);
        turn.sin[i].x = load_one(table.sin, column / 2 + i);
      }
    }
    return turn;
  }

  /// The values of two words that load_two or, of one element, load_one returned.
  __device__ float2 unpack_two(uint2 words) const {
    if (!rope.fp32) return unpack_pair<Element>(words.x);
    return {__uint_as_float(words.x), __uint_as_float(words.y)};
  }

  /// Turns four columns of a row. A warp.
  __device__ void apply(const RowTurn& turn, float (&z)[4]) const {
    const int apart = rope.width / 2;
    const int other = lane + (is_first ? apart : -apart) / 4;
#pragma unroll
    for (int i = 0; i < 4; i += 2) {
      const float2 cos = unpack_two(turn.cos[i / 2]), sin = unpack_two(turn.sin[i / 2]);
      if (rope.interleaved) {
        if (i < turned) rotate(z[i], z[i + 1], cos.x, sin.x);
        continue;
      }
      const float first = __shfl_sync(0xFFFFFFFFu, z[i], other & 31);
      const float second = __shfl_sync(0xFFFFFFFFu, z[i + 1], other & 31);
      if (turned == 0) continue;
      z[i] = z[i] * cos.x + (is_first ? -first : first) * sin.x;
      z[i + 1] = z[i + 1] * cos.y + (is_first ? -second : second) * sin.y;
    }
  }
};

template <class Element, int kRows>
__global__ __launch_bounds__(
    gemm::FewRowsConfig<Element, kRows>::kThreads,
    gemm::FewRowsConfig<Element, kRows>::
        kCtas) void projection_heads_few_rows_kernel(const __grid_constant__ HeadsParams params) {
  extern __shared__ __align__(1024) char shared_memory[];
  using Config = gemm::FewRowsConfig<Element, kRows>;
  auto& shared = *reinterpret_cast<gemm::FewRowsShared<Config>*>(shared_memory);
  gemm::run_few_rows<Config>(params, shared, [&](const gemm::FewRowsTile& tile) {
    return HeadRows<Element>(params, tile);
  });
}

constexpr int kFinishWarps = 8;
constexpr int kFinishHeads = 4;  // of a lane, whose loads are under way together

/// A warp per row and some heads of the CTA's segment, of any widths.
template <class Element, bool kEights>
__global__ __launch_bounds__(32 * kFinishWarps) void projection_finish_kernel(
    const __grid_constant__ FinishParams params) {
  follow_stream();
  const FinishParams::Segment& segment = params.segments[blockIdx.y];
  const int width = segment.head_width, heads = segment.columns / width;
  const int lanes = lanes_of_head(width), across = 32 / lanes;  // heads of a warp side by side
  const int per_row = (heads + across * kFinishHeads - 1) / (across * kFinishHeads);
  const std::int64_t item = blockIdx.x * std::int64_t{kFinishWarps} + threadIdx.x / 32;
  if (item >= params.M * per_row) return;
  const std::int64_t row = item / per_row;
  const int lane = threadIdx.x % 32;
  const HeadColumns<Element, kEights> columns{params.rope, segment.heads, width,
                                              8 * (lane % lanes)};
  const auto head = [&](int i) {
    return (static_cast<int>(item % per_row) * kFinishHeads + i) * across + lane / lanes;
  };
  const auto works = [&](int i) { return columns.inside && head(i) < heads; };
  const float* const of_row = segment.z + row * segment.columns;
  Words<float> words[kFinishHeads];
#pragma unroll
  for (int i = 0; i < kFinishHeads; ++i) {
    words[i] = load_words(of_row + head(i) * width + columns.column, works(i));
  }
  const bool normalizes = segment.heads.norm_weight != nullptr;
  float weight[8];
  if (normalizes) columns.load_weight(weight);
  Turn turn;
  columns.load(turn, row, false);
#pragma unroll
  for (int i = 0; i < kFinishHeads; ++i) {
    const int at = head(i) * width + columns.column;
    float z[8], rstd = 1.0f;
    unpack(words[i], z);
    if (works(i) && segment.pre_norm.data != nullptr) {
      store_eight(
          static_cast<Element*>(segment.pre_norm.data) + row * segment.pre_norm.row_stride + at, 8,
          z);
    }
    if (normalizes) {
      float sum = 0.0f;
#pragma unroll
      for (float value : z) sum = fmaf(value, value, sum);
      rstd = rsqrtf(sum_of_head(sum, lanes) / static_cast<float>(width) + segment.heads.eps);
      if (works(i) && columns.column == 0 && segment.rstd.data != nullptr) {
        static_cast<float*>(segment.rstd.data)[row * segment.rstd.row_stride + head(i)] = rstd;
      }
#pragma unroll
      for (int j = 0; j < 8; ++j) z[j] *= rstd * weight[j];
    }
    const auto other = [&](int column) {
      if (!works(i)) return 0.0f;
      const float value = of_row[head(i) * width + column];
      return normalizes ? value * (rstd * load_norm_weight<Element>(segment.heads, column)) : value;
    };
    columns.apply(turn, other, z);
    if (!works(i)) continue;
    const std::int64_t to = row * segment.out.row_stride + at;
    if (segment.out_fp32) {
      store_eight(static_cast<float*>(segment.out.data) + to, 8, z);
    } else {
      store_eight(static_cast<Element*>(segment.out.data) + to, 8, z);
    }
  }
}

template <class Element, int kColumns>
void launch_heads(const HeadsParams& params, int multiprocessors, void* stream) {
  gemm::launch<ForwardConfig<Element, kColumns>>("projection_forward",
                                                 projection_heads_kernel<Element, kColumns>, params,
                                                 multiprocessors, stream);
}

template <class Element, int kRows>
void launch_heads_few_rows(const HeadsParams& params, int multiprocessors, void* stream) {
  const gemm::FewRowsShape shape =
      gemm::few_rows_shape(kRows, params.rows, params.tiles_before[kMostProjectionSegments],
                           params.depth[0], multiprocessors);
  gemm::launch_few_rows<gemm::FewRowsConfig<Element, kRows>>(
      "projection_forward", projection_heads_few_rows_kernel<Element, kRows>, params, shape,
      stream);
}

template <class Element>
void launch_finish(const FinishParams& params, void* stream) {
  std::int64_t per_row = 0;  // warps
  for (int i = 0; i < params.count; ++i) {
    const FinishParams::Segment& segment = params.segments[i];
    const std::int64_t heads = segment.columns / segment.head_width;
    per_row =
        std::max(per_row, ceil_div(heads * lanes_of_head(segment.head_width), 32 * kFinishHeads));
  }
  if (params.M * per_row == 0) return;
  launch_kernel("projection_forward",
                in_eights(params.rope) ? projection_finish_kernel<Element, true>
                                       : projection_finish_kernel<Element, false>,
                {.blocks = static_cast<unsigned>(ceil_div(params.M * per_row, kFinishWarps)),
                 .blocks_y = static_cast<unsigned>(params.count),
                 .threads = 32 * kFinishWarps},
                static_cast<cudaStream_t>(stream), params);
}

}  // namespace tandem::cuda::projection
