// projection_few_rows_kernel: projection's forward of few rows (gemm/few_rows.cuh).
#pragma once

#include "cuda/gemm/bias.cuh"
#include "cuda/gemm/target.cuh"
#include "cuda/parts/warp_sums.cuh"
#include "cuda/projection/activations.cuh"

namespace tandem::cuda::projection {

/// What a tile's rows need of their segment, and of it a thread's four columns.
struct RowSegment {
  SegmentActivation activation;
  int columns;
  int head_width;
  gemm::RowBias bias;
  gemm::RowTarget out;
  gemm::RowTarget slope;
  MatrixTensor inverse_norm;
};

template <class Element>
__device__ RowSegment begin_rows(const ForwardParams& params, const gemm::FewRowsTile& tile) {
  const ForwardSegment& from = params.segments[tile.segment];
  const int columns = params.columns[tile.segment], column = tile.thread_column;
  const int count =
      min(params.tile_columns[tile.segment] - (column - tile.column), columns - column);
  RowSegment to;
  to.activation = from.activation;
  to.columns = columns;
  to.head_width = from.head_width;
  to.bias = gemm::load_row_bias<Element>(from.bias, from.bias_fp32, columns, column);
  to.out = gemm::row_target<Element>(from.out, column, count);
  to.slope = gemm::row_target<Element>(from.slope, column, count);
  to.inverse_norm = from.inverse_norm;
  return gemm::in_registers(to);
}

/// Returns inverse_of(sum of squares) of a lane's head of a row, and keeps it where it is wanted.
/// Heads are whole pairs of lanes and begin with the tile; behind the last whole one it is 0.
template <class InverseOf>
__device__ float inverse_norm_of_head(const RowSegment& segment, const gemm::RowPiece& piece,
                                      InverseOf inverse_of) {
  const int lane = threadIdx.x % 32;
  const int lanes = segment.head_width / 4;
  const float(&z)[4] = piece.values;
  const float squares = fmaf(z[0], z[0], fmaf(z[1], z[1], fmaf(z[2], z[2], z[3] * z[3])));
  float inverse = 0.0f;
  for (int first = 0; first + lanes <= 32; first += lanes) {
    const bool mine = lane >= first && lane < first + lanes;
    const float sum = sum_warp(mine ? squares : 0.0f);
    if (mine) inverse = inverse_of(sum);
  }
  const int head = piece.column / segment.head_width;
  const bool whole = (head + 1) * segment.head_width <= segment.columns;
  if (segment.inverse_norm.data != nullptr && whole && lane % lanes == 0 &&
      lane / lanes < 32 / lanes) {
    static_cast<float*>(
        segment.inverse_norm.data)[piece.row * segment.inverse_norm.row_stride + head] = inverse;
  }
  return inverse;
}

/// Divides each head of a row by its norm.
__device__ inline void normalize_heads(const RowSegment& segment, const gemm::RowPiece& piece) {
  const float inverse = inverse_norm_of_head(segment, piece, [](float sum) {
    return rsqrtf(sum + static_cast<float>(kL2NormalizeEpsilon));
  });
#pragma unroll
  for (float& value : piece.values) value *= inverse;
}

/// Adds the bias, activates and writes rows of a segment; `kActivates`: else there is nothing to
/// activate. why the kind is known before the rows: branches of a row take longer than its values.
template <class Element, bool kActivates>
struct SegmentRows {
  RowSegment segment;

  template <class Rows>
  __device__ void finish(const Rows& rows) const {
    if (!kActivates || segment.activation.kind == Activation::kNone) {
      return rows.each([&](const gemm::RowPiece& piece) {
        segment.bias.add_to(piece.values);
        gemm::write<Element>(segment.out, piece.row, piece.values);
      });
    }
    if constexpr (kActivates) {
      if (segment.slope.columns == nullptr && segment.activation.kind == Activation::kSilu) {
        return rows.each([&](const gemm::RowPiece& piece) {
          segment.bias.add_to(piece.values);
          activate({Activation::kSilu}, piece.values);
          gemm::write<Element>(segment.out, piece.row, piece.values);
        });
      }
      rows.template each<1>([&](const gemm::RowPiece& piece) { activate_one(piece); });
    }
  }

 private:
  __device__ void activate_one(const gemm::RowPiece& piece) const {
    segment.bias.add_to(piece.values);
    if (segment.slope.columns != nullptr) {
      float slopes[4] = {piece.values[0], piece.values[1], piece.values[2], piece.values[3]};
      differentiate(segment.activation, slopes);
      gemm::write<Element>(segment.slope, piece.row, slopes);
    }
    if (segment.activation.kind == Activation::kL2Normalize) {
      normalize_heads(segment, piece);
    } else {
      activate(segment.activation, piece.values);
    }
    gemm::write<Element>(segment.out, piece.row, piece.values);
  }
};

template <class Element, int kRows, int kColumns>
__global__ __launch_bounds__(
    gemm::FewRowsConfig<Element, kRows, kColumns>::kThreads,
    gemm::FewRowsConfig<Element, kRows, kColumns>::
        kCtas) void projection_few_rows_kernel(const __grid_constant__ ForwardParams params) {
  extern __shared__ __align__(1024) char shared_memory[];
  using Config = gemm::FewRowsConfig<Element, kRows, kColumns>;
  auto& shared = *reinterpret_cast<gemm::FewRowsShared<Config>*>(shared_memory);
  gemm::run_few_rows<Config>(params, shared, [&](const gemm::FewRowsTile& tile) {
    // A row of a wider tile is not a warp's, as the norm of heads needs it.
    return SegmentRows<Element, kColumns == gemm::kFewRowsColumns>{
        begin_rows<Element>(params, tile)};
  });
}

template <class Element, int kRows, int kColumns>
void launch_few_rows(const ForwardParams& params, int multiprocessors, void* stream) {
  const gemm::FewRowsShape shape =
      gemm::few_rows_shape(kRows, params.rows, params.tiles_before[kMostProjectionSegments],
                           params.depth[0], multiprocessors);
  gemm::launch_few_rows<gemm::FewRowsConfig<Element, kRows, kColumns>>(
      "projection_forward", projection_few_rows_kernel<Element, kRows, kColumns>, params, shape,
      stream);
}

}  // namespace tandem::cuda::projection
