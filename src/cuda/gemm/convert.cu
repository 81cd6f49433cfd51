// gemm_convert_kernel, between 16 bits and fp32, and gemm_sum_slices_kernel.
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

/// A thread per element and group of slices, every groups-th one; then the groups' sums are added
/// up: one order, but as many loads on their way as there are slices.
template <class Element>
__global__ __launch_bounds__(kThreads) void gemm_sum_slices_kernel(
    const __grid_constant__ SumSlicesParams params, int groups) {
  follow_stream();
  __shared__ float sums[kThreads];
  const int elements = kThreads / groups;  // of the block
  const int element = static_cast<int>(threadIdx.x) % elements;
  const std::int64_t count = params.rows * params.columns;
  const std::int64_t i = std::int64_t{blockIdx.x} * elements + element;
  float sum = 0.0f;
  if (i < count) {
#pragma unroll 8
    for (int slice = threadIdx.x / elements; slice < params.slices; slice += groups) {
      sum += params.partial_sums[slice * count + i];
    }
  }
  sums[threadIdx.x] = sum;
  __syncthreads();
  if (threadIdx.x >= elements || i >= count) return;
  const std::int64_t at = i / params.columns * params.result.row_stride + i % params.columns;
  float* wide = static_cast<float*>(params.result.data) + at;
  Element* narrow = static_cast<Element*>(params.result.data) + at;
  float total = 0.0f;
  if (params.accumulate) total = params.fp32 ? *wide : static_cast<float>(*narrow);
  for (int group = 0; group < groups; ++group) total += sums[group * elements + element];
  if (params.fp32) {
    *wide = total;
  } else {
    *narrow = static_cast<Element>(total);
  }
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
void launch_sum_slices(const char* name, const SumSlicesParams& params, void* stream) {
  const int groups = params.slices < 16 ? 1 : 8;
  const std::int64_t blocks = ceil_div(params.rows * params.columns, kThreads / groups);
  if (blocks == 0) return;
  launch_kernel(name, gemm_sum_slices_kernel<Element>,
                {.blocks = static_cast<unsigned>(blocks), .threads = kThreads},
                static_cast<cudaStream_t>(stream), params, groups);
}

#define TANDEM_GEMM_CONVERT(Element)                                              \
  template void launch_copy<Element>(const char*, const ConvertParams&, void*);   \
  template void launch_widen<Element>(const char*, const ConvertParams&, void*);  \
  template void launch_narrow<Element>(const char*, const ConvertParams&, void*); \
  template void launch_sum_slices<Element>(const char*, const SumSlicesParams&, void*);

TANDEM_GEMM_CONVERT(__nv_bfloat16)
#ifndef TANDEM_CUDA_DEV
TANDEM_GEMM_CONVERT(__half)
#endif

}  // namespace tandem::cuda::gemm
