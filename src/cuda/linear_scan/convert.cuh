// Kernels of linear_scan_backward that go over tensors element by element: between 16 bits and
// fp32, two 16-bit tensors whose sum is an fp32 tensor, and sums of slices.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <algorithm>

#include "cuda/linear_scan/matmul_params.h"
#include "cuda/parts/stream_order.cuh"
#include "cuda/runtime/launch.h"

namespace tandem::cuda {
namespace detail {

constexpr int kConvertColumns = 32;
constexpr int kConvertRows = 8;
constexpr int kConvertThreads = kConvertColumns * kConvertRows;

/// Calls use(batch, time, channel); neighbouring threads have neighbouring channels.
template <class Use>
__device__ void for_each_element(const LinearScanConvertParams& params, Use use) {
  const std::int64_t rows = params.B * params.T;
  const std::int64_t stride = std::int64_t{gridDim.x} * kConvertRows;
  for (std::int64_t row = std::int64_t{blockIdx.x} * kConvertRows + threadIdx.x / kConvertColumns;
       row < rows; row += stride) {
    const std::int64_t batch = row / params.T, time = row % params.T;
#pragma unroll 4
    for (int channel = threadIdx.x % kConvertColumns; channel < params.D;
         channel += kConvertColumns) {
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
__global__ void linear_scan_convert_kernel(const LinearScanConvertParams params) {
  follow_stream();
  for_each_element(params, [&](std::int64_t b, std::int64_t t, int i) {
    element<To>(params.to, b, t, i) = static_cast<To>(element<From>(params.from, b, t, i));
  });
}

template <class Element>
__global__ void linear_scan_split_kernel(const LinearScanConvertParams params) {
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
__global__ void linear_scan_sum_kernel(const LinearScanSumParams params) {
  follow_stream();
  const std::int64_t count = std::int64_t{params.D} * params.d;
  const std::int64_t i = std::int64_t{blockIdx.x} * kConvertThreads + threadIdx.x;
  if (i >= count) return;
  float sum = 0.0f;
#pragma unroll 8
  for (int part = 0; part < params.splits; ++part) sum += params.parts[part * count + i];
  static_cast<Element*>(params.sum.data)[i / params.d * params.sum.row_stride + i % params.d] =
      static_cast<Element>(sum);
}

inline void launch_convert(void (*kernel)(LinearScanConvertParams),
                           const LinearScanConvertParams& params, void* stream) {
  const std::int64_t blocks = (params.B * params.T + kConvertRows - 1) / kConvertRows;
  if (blocks == 0 || params.D == 0) return;
  launch_kernel("linear_scan_backward", kernel,
                {.blocks = static_cast<unsigned>(std::min<std::int64_t>(blocks, 8192)),
                 .threads = kConvertThreads},
                static_cast<cudaStream_t>(stream), params);
}

}  // namespace detail

template <class Element>
void launch_linear_scan_copy(const LinearScanConvertParams& params, void* stream) {
  detail::launch_convert(detail::linear_scan_convert_kernel<Element, Element>, params, stream);
}

template <class Element>
void launch_linear_scan_widen(const LinearScanConvertParams& params, void* stream) {
  detail::launch_convert(detail::linear_scan_convert_kernel<Element, float>, params, stream);
}

template <class Element>
void launch_linear_scan_narrow(const LinearScanConvertParams& params, void* stream) {
  detail::launch_convert(detail::linear_scan_convert_kernel<float, Element>, params, stream);
}

template <class Element>
void launch_linear_scan_split(const LinearScanConvertParams& params, void* stream) {
  detail::launch_convert(detail::linear_scan_split_kernel<Element>, params, stream);
}

template <class Element>
void launch_linear_scan_sum(const LinearScanSumParams& params, void* stream) {
  const std::int64_t count = std::int64_t{params.D} * params.d;
  const std::int64_t blocks = (count + detail::kConvertThreads - 1) / detail::kConvertThreads;
  if (blocks == 0) return;
  launch_kernel("linear_scan_backward", detail::linear_scan_sum_kernel<Element>,
                {.blocks = static_cast<unsigned>(blocks), .threads = detail::kConvertThreads},
                static_cast<cudaStream_t>(stream), params);
}

}  // namespace tandem::cuda
