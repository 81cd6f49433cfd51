// Strided-batched matrix products by cuBLASLt, in the heuristic's first algorithm: what torch.bmm
// calls.
#pragma once

#include <cuda_runtime_api.h>
#include <library_types.h>

#include <cstddef>
#include <cstdint>

namespace tandem::bench {

/// A row-major matrix per batch entry, entries back to back; `transposed`: stored as its transpose.
struct BatchedOperand {
  const void* data;
  bool transposed = false;
};

/// The product d[M,N] = alpha a[M,K] b[K,N] for each of `batch`; all of one 16-bit type, sums in
/// fp32.
struct BatchedProduct {
  cudaDataType_t dtype;
  std::int64_t batch, M, N, K;
  float alpha;
  BatchedOperand a, b;
  void* d;
};

constexpr std::size_t kMatmulWorkspaceBytes = std::size_t{32} << 20;

/// Enqueues the product on the current device. The first call on a device creates its handle, which
/// a capture must not.
void multiply(const BatchedProduct& product, void* workspace, cudaStream_t stream);

}  // namespace tandem::bench
