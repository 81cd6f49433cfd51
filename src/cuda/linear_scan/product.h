// The matrix products of linear_scan_backward: what their kernel receives.
#pragma once

#include "core/strided_tensor.h"
#include "cuda/gemm/operands.h"

namespace tandem::cuda::linear_scan {

/// x = u W^T, du = dx W and d_weight = dx^T u.
enum class Product { kProject, kInput, kWeight };

struct ProductParams : gemm::Operands {
  float* wide = nullptr;  // x [B,T,D], or slices of d_weight [slices,D,d]
  TokenTensor narrow;     // du
};

/// Launches linear_scan_product_kernel; instantiated in backward_instances.cuh.
template <class Element, Product kProduct>
void launch_product(const ProductParams& params, void* stream);

}  // namespace tandem::cuda::linear_scan
