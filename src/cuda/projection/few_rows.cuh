// projection_few_rows_kernel: projection's forward of few rows (gemm/few_rows.cuh).
#pragma once

#include "cuda/gemm/bias.cuh"
#include "cuda/gemm/target.cuh"
#include "cuda/parts/warp_sums.cuh"
#include "cuda/projection/activations.cuh"

namespace tandem::cuda::projection {

/// Returns inverse_of(sum of squares) of a lane's head of a row, and keeps it where it is wanted.
/// Heads are whole pairs of lanes and begin with the tile; behind the last whole one it is 0.
template <class InverseOf>
__device__ float inverse_norm_of_head(const ForwardParams& params, const ForwardSegment& segment,
                                      const gemm::RowPiece& piece, InverseOf inverse_of) {
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
  const bool whole = (head + 1) * segment.head_width <= params.columns[piece.segment];
  if (segment.inverse_norm.data != nullptr && whole && lane % lanes == 0 &&
      lane / lanes < 32 / lanes) {
    static_cast<float*>(
        segment.inverse_norm.data)[piece.row * segment.inverse_norm.row_stride + head] = inverse;
  }
  return inverse;
}

/// Divides each head of a row by its norm.
__device__ inline void normalize_heads(const ForwardParams& params, const ForwardSegment& segment,
                                       const gemm::RowPiece& piece) {
  const float inverse = inverse_norm_of_head(params, segment, piece, [](float sum) {
    return rsqrtf(sum + static_cast<float>(kL2NormalizeEpsilon));
  });
#pragma unroll
  for (float& value : piece.values) value *= inverse;
}

/// Writes a lane's values where they lie in the tile and in the segment.
template <class Element>
__device__ void write(const gemm::Target& to, const ForwardParams& params,
                      const gemm::RowPiece& piece, const float (&values)[4]) {
  const int lane = threadIdx.x % 32;
  const int count = min(params.tile_columns[piece.segment] - 4 * lane,
                        params.columns[piece.segment] - piece.column);
  gemm::write<Element>(to, piece, count, values);
}

template <class Element>
__device__ void finish(const ForwardParams& params, const gemm::RowPiece& piece) {
  const ForwardSegment& segment = params.segments[piece.segment];
  gemm::add_bias<Element>(segment.bias, segment.bias_fp32, params.columns[piece.segment], piece);
  if (segment.slope.matrix.data != nullptr) {
    float slopes[4] = {piece.values[0], piece.values[1], piece.values[2], piece.values[3]};
    differentiate(segment, slopes);
    write<Element>(segment.slope, params, piece, slopes);
  }
  if (segment.activation == Activation::kL2Normalize) {
    normalize_heads(params, segment, piece);
  } else {
    activate(segment, piece.values);
  }
  write<Element>(segment.out, params, piece, piece.values);
}

template <class Element, int kRows>
__global__ __launch_bounds__(
    gemm::FewRowsConfig<Element, kRows>::kThreads,
    gemm::FewRowsConfig<Element, kRows>::
        kCtas) void projection_few_rows_kernel(const __grid_constant__ ForwardParams params) {
  extern __shared__ __align__(1024) char shared_memory[];
  using Config = gemm::FewRowsConfig<Element, kRows>;
  auto& shared = *reinterpret_cast<gemm::FewRowsShared<Config>*>(shared_memory);
  gemm::run_few_rows<Config>(params, shared,
                             [&](const gemm::RowPiece& piece) { finish<Element>(params, piece); });
}

template <class Element, int kRows>
void launch_few_rows(const ForwardParams& params, int multiprocessors, void* stream) {
  const gemm::FewRowsShape shape =
      gemm::few_rows_shape(kRows, params.rows, params.tiles_before[kMostProjectionSegments],
                           params.depth[0], multiprocessors);
  gemm::launch_few_rows<gemm::FewRowsConfig<Element, kRows>>(
      "projection_forward", projection_few_rows_kernel<Element, kRows>, params, shape, stream);
}

}  // namespace tandem::cuda::projection
