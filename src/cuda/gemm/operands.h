// What the GEMM main loop reads, and how its tiles are dealt out.
#pragma once

#include <cuda.h>

#include <cstdint>

namespace tandem::cuda::gemm {

/// A and B as tensor maps [B,T,1,columns] of boxes of 64 columns (box_rows_a, box_rows_b), and the
/// product's extents. A is the sum of `terms` tensors: the first one, the smaller, is stored scaled
/// and counts times `term_scale`.
struct Operands {
  CUtensorMap a[2];
  CUtensorMap b;
  int terms = 1;
  float term_scale = 1.0f;
  std::int64_t B = 0;
  std::int64_t T = 0;
  int rows = 0;     // of the result; A's T of each batch row, but with kTN its columns
  int columns = 0;  // of the result
  int depth = 0;    // contracted; with kTN B and T are instead
  // With kTN: only tokens in [cu_seqlens[0], cu_seqlens[N]) are contracted; null: all.
  const std::int32_t* cu_seqlens = nullptr;
  std::int64_t N = 0;
  int slices = 1;  // with kTN: into which tokens are cut (split-K), each with a result of its own
};

}  // namespace tandem::cuda::gemm
