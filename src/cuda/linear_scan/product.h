// The matrix products of linear_scan: what their kernel receives.
#pragma once

#include "core/strided_tensor.h"
#include "cuda/gemm/config.h"
#include "cuda/gemm/operands.h"

namespace tandem::cuda::linear_scan {

/// x = u W^T, du = dx W and d_weight = dx^T u.
enum class Product { kProject, kInput, kWeight };

constexpr int kProductColumns = 128;  // of a tile
constexpr int kWideColumns = 256;     // of d_weight's, where tiles are many: they take less power
constexpr gemm::Layout layout_of(Product product) {
  return product == Product::kProject ? gemm::Layout::kNT
         : product == Product::kInput ? gemm::Layout::kNN
                                      : gemm::Layout::kTN;
}

/// The result goes to `wide`, or where that is null, rounded, to `narrow`.
struct ProductParams : gemm::Operands<> {
  float* wide = nullptr;  // x [B,T,D], or slices of d_weight [slices,D,d]
  TokenTensor narrow;     // x or du
  CUtensorMap narrow_map{};
  bool stores_by_tma = false;  // with narrow_map
};

/// Launches linear_scan_product_kernel; `name` is the op's, for errors. Instantiated in
/// backward_instances.cuh.
template <class Element, Product kProduct, int kColumns>
void launch_product(const char* name, const ProductParams& params, int multiprocessors,
                    void* stream);

}  // namespace tandem::cuda::linear_scan
