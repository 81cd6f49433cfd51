// What projection's backward kernels receive.
#pragma once

#include <cstdint>

#include "core/strided_tensor.h"
#include "cuda/gemm/operands.h"
#include "cuda/gemm/target.h"
#include "ops/projection_problem.h"

namespace tandem::cuda::projection {

constexpr int kGradientColumns = 512;  // of a chunk, or what whole heads take of it

/// dz of a segment, in 16 bits, from d_out and what the forward kept.
struct SegmentGradient {
  int columns = 0;
  ProjectionKept kept = ProjectionKept::kNothing;
  int head_width = 0;
  bool fp32 = false;  // d_out, and slope or out
  MatrixTensor d_out;
  MatrixTensor slope;
  MatrixTensor out;
  MatrixTensor inverse_norm;
  MatrixTensor dz;
  int chunks = 0;  // of columns, a warp's at a time; 0: dz is not wanted
  int chunk_columns = 0;
  // Rows begin at multiples of 16 bytes and have whole eights of columns, heads a power of two of
  // them.
  bool regular = false;
};
struct GradientParams {
  std::int64_t M = 0;
  SegmentGradient segments[kMostProjectionSegments];
};

/// dx = sum over the segments of dz W.
struct InputParams : gemm::Operands<1, kMostProjectionSegments> {
  gemm::Tail<kMostProjectionSegments> tail;
  gemm::Target dx{};
};

/// d_weight = dz^T x, computed as its transpose: its rows are x's columns, its segments of columns
/// those of dz.
struct WeightParams : gemm::Operands<kMostProjectionSegments> {
  gemm::Tail<1> tail;
  gemm::Beside beside;                                 // dx's product
  bool accumulate = false;                             // add to the results
  gemm::Target results[kMostProjectionSegments] = {};  // [columns,d]
};

/// Column sums of a matrix over slices of its rows.
struct ColumnSumParams {
  std::int64_t M = 0;
  int columns = 0;
  bool fp32 = false;
  MatrixTensor matrix;
  int slices = 1;
  float* partial_sums = nullptr;  // [slices,columns]
};

/// Instantiated in backward_instances.cuh.
template <class Element>
void launch_gradient(const GradientParams& params, void* stream);
template <class Element, int kColumns, int kParts>
void launch_input(const InputParams& params, int multiprocessors, void* stream);
template <class Element, int kColumns, int kParts>
void launch_weight(const WeightParams& params, int multiprocessors, void* stream);
template <class Element>
void launch_column_sums(const ColumnSumParams& params, void* stream);

}  // namespace tandem::cuda::projection
