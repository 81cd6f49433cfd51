// linear_scan_product_kernel: the GEMM main loop with the epilogues of x = u W^T, du = dx W and
// d_weight = dx^T u.
//
//   product   layout                   result
//   kProject  u [T,d], W [D,d]: kNT    x, fp32
//   kInput    dx [T,D], W [D,d]: kNN   du, 16 bits
//   kWeight   dx [T,D], u [T,d]: kTN   a slice's sum, fp32
//
// dx comes as two terms.
#pragma once

#include "cuda/gemm/loop.cuh"
#include "cuda/linear_scan/product.h"

namespace tandem::cuda::linear_scan {

template <class Element, Product kProduct>
struct ProductConfig : gemm::Config<Element, kProduct == Product::kProject ? gemm::Layout::kNT
                                             : kProduct == Product::kInput ? gemm::Layout::kNN
                                                                           : gemm::Layout::kTN> {};

/// Stores a fragment of x, or of a slice's d_weight.
__device__ inline void store_wide(const ProductParams& params, const gemm::Fragment& fragment) {
  gemm::store_fragment<float>(params, fragment, [&](int row) {
    const std::int64_t outer = fragment.outer;
    return params.wide + (outer * params.rows + row) * params.columns;
  });
}

/// Stores a fragment of du.
template <class Element>
__device__ void store_narrow(const ProductParams& params, const gemm::Fragment& fragment) {
  const TokenTensor& to = params.narrow;
  gemm::store_fragment<Element>(params, fragment, [&](int row) {
    return static_cast<Element*>(to.data) + fragment.outer * to.batch_stride + row * to.time_stride;
  });
}

template <class Element, Product kProduct>
__global__ __launch_bounds__(
    ProductConfig<Element, kProduct>::kThreads,
    2) void linear_scan_product_kernel(const __grid_constant__ ProductParams params) {
  extern __shared__ __align__(1024) char shared_memory[];
  using Config = ProductConfig<Element, kProduct>;
  auto& shared = *reinterpret_cast<gemm::Shared<Config>*>(shared_memory);
  gemm::run<Config>(params, shared, [&](const gemm::Fragment& fragment) {
    if constexpr (kProduct == Product::kInput) {
      store_narrow<Element>(params, fragment);
    } else {
      store_wide(params, fragment);
    }
  });
}

template <class Element, Product kProduct>
void launch_product(const ProductParams& params, void* stream) {
  gemm::launch<ProductConfig<Element, kProduct>>(
      "linear_scan_backward", linear_scan_product_kernel<Element, kProduct>, params, stream);
}

}  // namespace tandem::cuda::linear_scan
