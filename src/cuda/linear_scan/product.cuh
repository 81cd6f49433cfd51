// linear_scan_product_kernel: the GEMM main loop with the epilogues of x = u W^T, du = dx W and
// d_weight = dx^T u.
//
//   product   layout                   result
//   kProject  u [T,d], W [D,d]: kNT    x, 16 bits or fp32
//   kInput    dx [T,D], W [D,d]: kNN   du, 16 bits
//   kWeight   dx [T,D], u [T,d]: kTN   a slice's sum, fp32
#pragma once

#include "cuda/gemm/loop.cuh"
#include "cuda/linear_scan/product.h"

namespace tandem::cuda::linear_scan {

template <class Element, Product kProduct, int kColumns>
using ProductConfig = gemm::Config<Element, layout_of(kProduct), kColumns>;

template <class Element, Product kProduct, int kColumns>
__global__ __launch_bounds__(
    ProductConfig<Element, kProduct, kColumns>::kThreads,
    1) void linear_scan_product_kernel(const __grid_constant__ ProductParams params) {
  extern __shared__ __align__(1024) char shared_memory[];
  using Config = ProductConfig<Element, kProduct, kColumns>;
  using Fragment = gemm::Fragment<Config::kColumns>;
  auto& shared = *reinterpret_cast<gemm::Shared<Config>*>(shared_memory);
  gemm::run<Config>(params, shared, [&](const Fragment& fragment, gemm::PanelStore<Config>& store) {
    const std::int64_t outer = fragment.outer;
    if (kProduct == Product::kWeight || (kProduct == Product::kProject && params.wide != nullptr)) {
      gemm::store_fragment<float>(fragment, params.rows, params.columns[0], [&](int row) {
        return params.wide + (outer * params.rows + row) * params.columns[0];
      });
    } else if (params.stores_by_tma) {
      store.template store_all<Element>(params.narrow_map, params.columns[0], fragment);
    } else {
      const TokenTensor& to = params.narrow;
      gemm::store_fragment<Element>(fragment, params.rows, params.columns[0], [&](int row) {
        return static_cast<Element*>(to.data) + outer * to.batch_stride + row * to.time_stride;
      });
    }
  });
}

template <class Element, Product kProduct, int kColumns>
void launch_product(const char* name, const ProductParams& params, int multiprocessors,
                    void* stream) {
  gemm::launch<ProductConfig<Element, kProduct, kColumns>>(
      name, linear_scan_product_kernel<Element, kProduct, kColumns>, params, multiprocessors,
      stream);
}

}  // namespace tandem::cuda::linear_scan
