// Matrices as the GEMM main loop reads and writes them. Host only.
#pragma once

#include <algorithm>
#include <string>

#include "core/strided_tensor.h"
#include "cuda/gemm/config.h"
#include "cuda/gemm/sum_slices.h"
#include "cuda/gemm/target.h"
#include "cuda/runtime/copy.h"
#include "cuda/runtime/plan.h"
#include "cuda/runtime/tensor_map.h"

namespace tandem::cuda::gemm {

/// Columns of a row of 16-bit elements that is a multiple of 16 bytes, as copies have them.
inline std::int64_t padded(std::int64_t columns) { return ceil_div(columns, 8) * 8; }

inline TokenTensor as_tokens(const MatrixTensor& matrix) {
  return {matrix.data, 0, matrix.row_stride};
}
inline TileExtents matrix_extents(std::int64_t rows, std::int64_t columns) {
  return {1, rows, 1, columns};
}

/// Plans copies of `box_rows` rows of an operand: box_rows_a, box_rows_b.
inline TensorMapPlan plan_operand(const TokenTensor& tensor, DType dtype,
                                  const TileExtents& extents, int box_rows) {
  return plan_tile("operand", {tensor.data, tensor.batch_stride, tensor.time_stride, 0}, dtype,
                   extents, box_rows);
}

/// Plans what a PanelStore stores.
inline TensorMapPlan plan_result(const TokenTensor& tensor, DType dtype,
                                 const TileExtents& extents) {
  return plan_stored_tile("result", {tensor.data, tensor.batch_stride, tensor.time_stride, 0},
                          dtype, extents, kTileDepth);
}

/// Describes where a result goes that is `dtype` or fp32. `whole_panels`: a PanelStore may write
/// it.
inline Target make_target(const MatrixTensor& matrix, DType dtype, DType stored, std::int64_t rows,
                          std::int64_t columns, bool whole_panels) {
  Target to{};
  to.matrix = matrix;
  to.fp32 = stored == DType::kFloat32;
  if (matrix.data == nullptr || to.fp32 || !whole_panels) return to;
  const TensorMapPlan plan = plan_result(as_tokens(matrix), dtype, matrix_extents(rows, columns));
  to.by_tma = plan.problem.empty();
  if (to.by_tma) to.map = encode(plan);
  return to;
}

/// Says why the main loop cannot count a result's tiles, "" when it can.
inline std::string reason_against_tiles(std::int64_t rows, std::int64_t column_tiles) {
  if (rows <= kMaxIndex - kTileRows &&
      ceil_div(rows, kTileRows) <= kMaxIndex / std::max<std::int64_t>(column_tiles, 1)) {
    return "";
  }
  return "takes M below 2^31 - 128 and at most 2^31 - 1 tiles, got M " + std::to_string(rows) +
         " with " + std::to_string(column_tiles) + " tiles of columns";
}

/// Whether TMA can read an operand as it lies.
inline bool tma_reads(const TokenTensor& tensor, DType dtype, const TileExtents& extents) {
  return plan_operand(tensor, dtype, extents, kTileDepth).problem.empty();
}

/// Whether a matrix with elements must be copied before TMA can read it.
inline bool must_copy(const MatrixTensor& matrix, DType dtype, std::int64_t rows,
                      std::int64_t columns) {
  return rows > 0 && columns > 0 &&
         !tma_reads(as_tokens(matrix), dtype, matrix_extents(rows, columns));
}

/// Copies a matrix to `to`, where its rows are padded.
inline MatrixTensor copy_matrix(const char* name, const MatrixTensor& matrix, std::int64_t rows,
                                int columns, void* to, void* stream) {
  const MatrixTensor made{to, padded(columns)};
  launch_copy(name, as_tokens(matrix), as_tokens(made), 1, rows, columns, stream);
  return made;
}

using SumSlices = void (*)(const char* name, const SumSlicesParams&, void* stream);

}  // namespace tandem::cuda::gemm
