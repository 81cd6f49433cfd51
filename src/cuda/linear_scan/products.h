// linear_scan's matrix products as calls of projection's, over the tokens of all batch rows: x = u
// W^T, and du = dx W with d_weight = dx^T u. Host only.
#pragma once

#include <optional>

#include "cuda/gemm/matrix.h"
#include "ops/linear_scan_problem.h"
#include "ops/projection_problem.h"

namespace tandem::cuda::linear_scan {

/// The tokens of all batch rows as the rows of one matrix, where they lie at one stride.
inline std::optional<MatrixTensor> as_rows(const TokenTensor& tokens, std::int64_t B,
                                           std::int64_t T) {
  if (B <= 1) return MatrixTensor{tokens.data, tokens.time_stride};
  if (T <= 1) return MatrixTensor{tokens.data, tokens.batch_stride};
  if (tokens.batch_stride != T * tokens.time_stride) return std::nullopt;
  return MatrixTensor{tokens.data, tokens.time_stride};
}

/// Elements of a copy of such a matrix, or of one in its place.
inline std::int64_t elements_of_rows(const ScanRecurrence& problem, int columns) {
  return problem.B * problem.T * gemm::padded(columns);
}
inline MatrixTensor rows_at(void* data, int columns) { return {data, gemm::padded(columns)}; }
inline TokenTensor as_tokens(const MatrixTensor& rows, std::int64_t T) {
  return {rows.data, T * rows.row_stride, rows.row_stride};
}

/// x = u W^T, in 16 bits.
inline ProjectionForwardProblem product_of_u(const LinearScanForwardProblem& problem,
                                             const MatrixTensor& u, const MatrixTensor& x) {
  ProjectionForwardProblem product;
  product.dtype = problem.dtype;
  product.device = problem.device;
  product.M = problem.B * problem.T;
  product.d = problem.d;
  product.x = u;
  product.segment_count = 1;
  ProjectionForwardSegment& segment = product.segments[0];
  segment.columns = problem.D;
  segment.weight = problem.weight;
  segment.out_dtype = problem.dtype;
  segment.out = x;
  return product;
}

/// du and d_weight, of which either may be null.
inline ProjectionBackwardProblem products_of_dx(const LinearScanForwardProblem& problem,
                                                const MatrixTensor& dx, const MatrixTensor& u,
                                                const MatrixTensor& du,
                                                const MatrixTensor& d_weight) {
  ProjectionBackwardProblem product;
  product.dtype = problem.dtype;
  product.device = problem.device;
  product.M = problem.B * problem.T;
  product.d = problem.d;
  product.x = u;
  product.dx = du;
  product.segment_count = 1;
  ProjectionBackwardSegment& segment = product.segments[0];
  segment.columns = problem.D;
  segment.weight = problem.weight;
  segment.out_dtype = problem.dtype;
  segment.d_out = dx;
  segment.d_weight_dtype = problem.dtype;
  segment.d_weight = d_weight;
  return product;
}

}  // namespace tandem::cuda::linear_scan
