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

/// Tile of a product: rows by columns of the result, and tokens or columns contracted at a time.
constexpr int kProductTile = 128;
constexpr int kProductStep = 64;

/// A 16-bit operand dx is the sum of `terms` tensors, the smaller one first and scaled: times
/// `term_scale` it counts.
struct LinearScanProductParams {
  CUtensorMap a[2];  // u, or the terms of dx
  CUtensorMap b;     // W, W or u
  int terms = 1;
  float term_scale = 1.0f;
  std::int64_t B = 0;
  std::int64_t T = 0;
  int rows = 0;     // of the result: T of each batch row, or D
  int columns = 0;  // D or d
  int depth = 0;    // contracted: d or D; of kWeight the tokens, T in each batch row
  const std::int32_t* cu_seqlens = nullptr;  // of kWeight: only [cu_seqlens[0], cu_seqlens[N])
  std::int64_t N = 0;
  int splits = 1;         // of kWeight: parts of the tokens
  float* wide = nullptr;  // x [B,T,D], or parts of d_weight [splits,D,d]
  TokenTensor narrow;     // du
};

/// Launches linear_scan_product_kernel; instantiated in backward_*.cu.
template <class Element, LinearScanProduct kProduct>
void launch_linear_scan_product(const LinearScanProductParams& params, void* stream);

/// Tokens of [B,T,D], copied element by element.
struct LinearScanConvertParams {
  std::int64_t B = 0;
  std::int64_t T = 0;
  int D = 0;
  TokenTensor from;
  TokenTensor to;
  TokenTensor low;  // of a split: what `to` leaves, times `low_scale`
  float low_scale = 1.0f;
};
/// 16 bits to 16 bits, to fp32, or back.
template <class Element>
void launch_linear_scan_copy(const LinearScanConvertParams& params, void* stream);
template <class Element>
void launch_linear_scan_widen(const LinearScanConvertParams& params, void* stream);
template <class Element>
void launch_linear_scan_narrow(const LinearScanConvertParams& params, void* stream);
template <class Element>
void launch_linear_scan_split(const LinearScanConvertParams& params, void* stream);

/// The parts of d_weight, added up in their order.
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
