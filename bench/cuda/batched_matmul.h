// Strided-batched matrix products by cuBLASLt: what torch.matmul and torch.bmm call, in the fastest
// of the algorithms that the heuristic proposes first.
#pragma once

#include <cuda_runtime_api.h>
#include <library_types.h>

#include <cstddef>
#include <cstdint>

#include "tandem/tensor.h"

namespace tandem::bench {

/// The type of a product's operands; `dtype` has 16 bits.
inline cudaDataType_t cuda_type(DType dtype) {
  return dtype == DType::kBFloat16 ? CUDA_R_16BF : CUDA_R_16F;
}

/// A row-major matrix per batch entry, entries back to back; `transposed`: stored as its transpose.
struct BatchedOperand {
  const void* data;
  bool transposed = false;
  std::int64_t row_stride = 0;  // of what is stored, in elements; 0: no gaps
};

/// The product d[M,N] = alpha a[M,K] b[K,N] for each of `batch`, and what is added to it; a and b
/// of one 16-bit type, sums in fp32.
struct BatchedProduct {
  cudaDataType_t dtype;
  std::int64_t batch, M, N, K;
  float alpha;
  BatchedOperand a, b;
  void* d;
  std::int64_t d_row_stride = 0;  // as an operand's
  bool fp32 = false;              // d, else of the operands' type
  bool accumulate = false;        // d is added to
  const void* c = nullptr;        // in place of that: a matrix like d that is added
  std::int64_t c_row_stride = 0;  // as an operand's
  const void* bias = nullptr;     // [N], of d's type: added to each row
};

constexpr std::size_t kMatmulWorkspaceBytes = std::size_t{32} << 20;

/// Enqueues the product on the current device. The first product of a shape waits for the device:
/// it times algorithms with a cold L2 and keeps the fastest for the life of the process. A capture
/// takes only shapes that are known, else this throws.
void multiply(const BatchedProduct& product, void* workspace, cudaStream_t stream);

}  // namespace tandem::bench
