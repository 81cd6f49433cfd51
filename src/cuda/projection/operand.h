// Matrices of projection as the GEMM main loop reads and writes them. Host only.
#pragma once

#include "core/strided_tensor.h"
#include "cuda/gemm/config.h"
#include "cuda/runtime/plan.h"
#include "cuda/runtime/tensor_map.h"

namespace tandem::cuda::projection {

/// Elements of a copied row: whole 16 bytes.
inline std::int64_t padded(std::int64_t columns) { return ceil_div(columns, 8) * 8; }

inline TensorMapPlan plan_operand(const MatrixTensor& matrix, DType dtype, std::int64_t rows,
                                  std::int64_t columns, int box_rows) {
  return plan_tile("matrix", {matrix.data, 0, matrix.row_stride, 0}, dtype, {1, rows, 1, columns},
                   box_rows);
}

inline TensorMapPlan plan_result(const MatrixTensor& matrix, DType dtype, std::int64_t rows,
                                 std::int64_t columns) {
  return plan_stored_tile("matrix", {matrix.data, 0, matrix.row_stride, 0}, dtype,
                          {1, rows, 1, columns}, gemm::kTileDepth);
}

/// Whether a matrix with elements must be copied before TMA can read it.
inline bool must_copy(const MatrixTensor& matrix, DType dtype, std::int64_t rows,
                      std::int64_t columns) {
  if (rows == 0 || columns == 0) return false;
  return !plan_operand(matrix, dtype, rows, columns, gemm::kTileDepth).problem.empty();
}

}  // namespace tandem::cuda::projection
