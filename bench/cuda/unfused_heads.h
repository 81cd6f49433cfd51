// What follows a product in each head, a weighted RMS norm and a rotation, as one kernel of its
// own, for the baselines.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

#include "bench/cuda/unfused_rms_norm.h"
#include "core/strided_tensor.h"
#include "ops/projection_problem.h"
#include "tandem/tensor.h"

namespace tandem::bench {

/// Rows [M,columns] of heads and what they end in.
struct HeadRows {
  DType dtype;  // 16 bits
  std::int64_t M;
  int columns;
  int head_width;
  HeadFinish finish;
  Rope rope;
};

/// Throws Unsupported for what has no whole vectors of 16 bytes, and for halves that are not whole
/// eights of columns apart; `name` is the baseline's.
void check_heads(const char* name, const HeadRows& rows);

/// Finishes the products that out holds, in place; keeps what is kept.
void finish_heads(const HeadRows& rows, const MatrixTensor& out, DType out_dtype,
                  cudaStream_t stream);

/// dz in 16 bits from d_out, and the gradient by the norm's weight. `sums` are head_sums_bytes.
void differentiate_heads(const HeadRows& rows, const MatrixTensor& d_out, DType out_dtype,
                         const MatrixTensor& dz, const NormWeightGradient& d_weight, float* sums,
                         cudaStream_t stream);
std::size_t head_sums_bytes(const HeadRows& rows);

}  // namespace tandem::bench
