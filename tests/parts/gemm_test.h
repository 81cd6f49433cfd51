// What the tests of GEMMs share: operands that both sides can read.
#pragma once

#include <cuda_bf16.h>

#include "cuda/gemm/operands.h"
#include "cuda/runtime/tensor_map.h"
#include "tests/parts/gpu_test.h"

namespace tandem::cuda::gemm {

using Element = __nv_bfloat16;

/// A matrix [batches, rows, columns] on the device.
struct Matrix {
  int batches, rows, columns;
  DeviceArray<Element> values;

  Matrix(int batches, int rows, int columns, unsigned seed)
      : batches(batches),
        rows(rows),
        columns(columns),
        values(random_elements<Element>(std::size_t{1} * batches * rows * columns, seed)) {}
  double at(int batch, int row, int column) const {
    const std::size_t i = (std::size_t{1} * batch * rows + row) * columns + column;
    return static_cast<float>(values.host[i]);
  }
  CUtensorMap map(int box_rows) const {
    const StridedTensor tensor{values.device, std::int64_t{rows} * columns, columns, 0};
    const TensorMapPlan plan =
        plan_tile("", tensor, DType::kBFloat16, {batches, rows, 1, columns}, box_rows);
    EXPECT_EQ(plan.problem, "");
    return encode(plan);
  }
};

}  // namespace tandem::cuda::gemm
