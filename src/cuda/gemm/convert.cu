// gemm_convert_kernel, gemm_split_kernel and gemm_sum_kernel: between 16 bits and fp32, two 16-bit
// tensors whose sum is an fp32 tensor, and sums of slices.
#include "cuda/gemm/convert.h"

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <algorithm>

#include "cuda/parts/stream_order.cuh"
#include "cuda/runtime/launch.h"
#include "cuda/runtime/plan.h"

namespace tandem::cuda::gemm {
namespace {

constexpr int kColumns = 32;
constexpr int kRows = 8;
constexpr int kThreads = kColumns * kRows;

/// Calls use(batch, time, channel); neighbouring threads have neighbouring channels.
template <class Use>
__device__ void for_each_element(const ConvertParams& params, Use use) {
  const std::int64_t rows = params.B * params.T;
  const std::int64_t stride = std::int64_t{gridDim.x} * kRows;
  for (std::int64_t row = std::int64_t{blockIdx.x} * kRows + threadIdx.x / kColumns; row < rows;
       row += stride) {
    const std::int64_t batch = row / params.T, time = row % params.T;
#pragma unroll 4
    for (int channel = threadIdx.x % kColumns; channel < params.D; channel += kColumns) {
      use(batch, time, channel);
    }
  }
}

template <class Stored>
__device__ Stored& element(const TokenTensor& tensor, std::int64_t batch, std::int64_t time,
                           int channel) {
  return static_cast<Stored*>(
      tensor.data)[batch * tensor.batch_stride + time * tensor.time_stride + channel];
}

template <class From, class To>
__global__ void gemm_convert_kernel(const ConvertParams params) {
  follow_stream();
  for_each_element(params, [&](std::int64_t b, std::int64_t t, int i) {
    element<To>(params.to, b, t, i) = static_cast<To>(element<From>(params.from, b, t, i));
  });
}

template <class Element>
__global__ void gemm_split_kernel(const ConvertParams params) {
  follow_stream();
  for_each_element(params, [&](std::int64_t b, std::int64_t t, int i) {
    const float value = element<float>(params.from, b, t, i);
    const Element high = static_cast<Element>(value);
    const float rest = value - static_cast<float>(high);
    element<Element>(params.to, b, t, i) = high;
    // why: an infinity or NaN leaves no rest to be added.
    element<Element>(params.low, b, t, i) = static_cast<Element>(
        isfinite(rest) && isfinite(static_cast<float>(high)) ? rest * params.low_scale : 0.0f);
  });
}

template <class Element>
__global__ void gemm_sum_kernel(const SumParams params) {
  follow_stream();
  const std::int64_t count = std::int64_t{params.rows} * params.columns;
  const std::int64_t i = std::int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i >= count) return;
  float sum = 0.0f;
#pragma unroll 8
  for (int slice = 0; slice < params.slices; ++slice) sum += params.partial_sums[slice * count + i];
  static_cast<Element*>(
      params.sum.data)[i / params.columns * params.sum.row_stride + i % params.columns] =
      static_cast<Element>(sum);
}

void launch_convert(const char* name, void (*kernel)(ConvertParams), const ConvertParams& params,
                    void* stream) {
  const std::int64_t blocks = ceil_div(params.B * params.T, kRows);
  if (blocks == 0 || params.D == 0) return;
  launch_kernel(
      name, kernel,
      {.blocks = static_cast<unsigned>(std::min<std::int64_t>(blocks, 8192)), .threads = kThreads},
      static_cast<cudaStream_t>(stream), params);
}

}  // namespace

template <class Element>
void launch_copy(const char* name, const ConvertParams& params, void* stream) {
  launch_convert(name, gemm_convert_kernel<Element, Element>, params, stream);
}

template <class Element>
void launch_widen(const char* name, const ConvertParams& params, void* stream) {
  launch_convert(name, gemm_convert_kernel<Element, float>, params, stream);
}

template <class Element>
void launch_narrow(const char* name, const ConvertParams& params, void* stream) {
  launch_convert(name, gemm_convert_kernel<float, Element>, params, stream);
}

template <class Element>
void launch_split(const char* name, const ConvertParams& params, void* stream) {
  launch_convert(name, gemm_split_kernel<Element>, params, stream);
}

template <class Element>
void launch_sum(const char* name, const SumParams& params, void* stream) {
  const std::int64_t count = std::int64_t{params.rows} * params.columns;
  const std::int64_t blocks = ceil_div(count, kThreads);
  if (blocks == 0) return;
  launch_kernel(name, gemm_sum_kernel<Element>,
                {.blocks = static_cast<unsigned>(blocks), .threads = kThreads},
                static_cast<cudaStream_t>(stream), params);
}

#define TANDEM_GEMM_CONVERT(Element)                                              \
  template void launch_copy<Element>(const char*, const ConvertParams&, void*);   \
  template void launch_widen<Element>(const char*, const ConvertParams&, void*);  \
  template void launch_narrow<Element>(const char*, const ConvertParams&, void*); \
  template void launch_split<Element>(const char*, const ConvertParams&, void*);  \
  template void launch_sum<Element>(const char*, const SumParams&, void*);

TANDEM_GEMM_CONVERT(__nv_bfloat16)
#ifndef TANDEM_CUDA_DEV
TANDEM_GEMM_CONVERT(__half)
#endif

}  // namespace tandem::cuda::gemm
