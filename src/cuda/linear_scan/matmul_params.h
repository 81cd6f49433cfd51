// The matrix products of linear_scan_backward: what their kernel and the ones beside it receive.
#pragma once

#include <cuda.h>

#include <cstddef>
#include <cstdint>

#include "core/strided_tensor.h"
#include "tandem/tensor.h"

namespace tandem::cuda {

/// x = u W^T, du = dx W and d_weight = dx^T u.
enum class LinearScanProduct { kProject, kInput, kWeight };

/// Tile of a product: rows and columns of the result; step: tokens or columns contracted at a time.
constexpr int kProductTile = 128;
constexpr int kProductStep = 64;

/// One product. The 16-bit operand dx is the sum of `terms` tensors: the first one, the smaller, is
/// stored scaled and counts times `term_scale`.
struct LinearScanProductParams {
  CUtensorMap a[2];  // u, or the terms of dx
  CUtensorMap b;     // W, W or u
  int terms = 1;
  float term_scale = 1.0f;
  std::int64_t B = 0;
  std::int64_t T = 0;
  int rows = 0;     // rows of the result: T of each batch row, or D
  int columns = 0;  // D or d
  int depth = 0;    // contracted: d or D; of kWeight the tokens, T in each batch row
  const std::int32_t* cu_seqlens = nullptr;  // of kWeight: only [cu_seqlens[0], cu_seqlens[N])
  std::int64_t N = 0;
  int splits = 1;         // of kWeight: slices of the tokens
  float* wide = nullptr;  // x [B,T,D], or slices of d_weight [splits,D,d]
  TokenTensor narrow;     // du
};

/// Launches linear_scan_product_kernel; instantiated in backward_*.cu.
template <class Element, LinearScanProduct kProduct>
void launch_linear_scan_product(const LinearScanProductParams& params, void* stream);

/// A copy of [B,T,D] element by element.
struct LinearScanConvertParams {
  std::int64_t B = 0;
  std::int64_t T = 0;
  int D = 0;
  TokenTensor from;
  TokenTensor to;
  TokenTensor low;  // of a split: what rounding to `to` leaves, times `low_scale`
  float low_scale = 1.0f;
};
/// Copy 16 bits to 16 bits, widen to fp32, narrow back, or split fp32 into two 16-bit tensors.
template <class Element>
void launch_linear_scan_copy(const LinearScanConvertParams& params, void* stream);
template <class Element>
void launch_linear_scan_widen(const LinearScanConvertParams& params, void* stream);
template <class Element>
void launch_linear_scan_narrow(const LinearScanConvertParams& params, void* stream);
template <class Element>
void launch_linear_scan_split(const LinearScanConvertParams& params, void* stream);

/// A sum of the slices of d_weight, in their order.
struct LinearScanSumParams {
  const float* parts = nullptr;  // [splits,D,d]
  int splits = 0;
  int D = 0;
  int d = 0;
  MatrixTensor sum;
};
template <class Element>
void launch_linear_scan_sum(const LinearScanSumParams& params, void* stream);

}  // namespace tandem::cuda
