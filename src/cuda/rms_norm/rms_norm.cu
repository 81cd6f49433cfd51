// The kernels of the RMS norm: a CTA per row, or for sums over rows per slice of them. Bound by
// memory: floor x once, and n, or dn and dx.
#include "cuda/rms_norm/rms_norm.h"

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <algorithm>

#include "cuda/gemm/convert.h"
#include "cuda/parts/eight.cuh"
#include "cuda/parts/stream_order.cuh"
#include "cuda/parts/warp_sums.cuh"
#include "cuda/runtime/launch.h"
#include "cuda/runtime/plan.h"

namespace tandem::cuda::rms_norm {
namespace {

constexpr int kThreads = 256;
constexpr int kWarps = kThreads / 32;
constexpr int kHeld = 4;  // eights of a row that a thread keeps between its two passes over them

/// Sums over the CTA, in one order.
__device__ float sum_block(float value, float (&sums)[kWarps]) {
  value = sum_warp(value);
  if (threadIdx.x % 32 == 0) sums[threadIdx.x / 32] = value;
  __syncthreads();
  float sum = 0.0f;
#pragma unroll
  for (float part : sums) sum += part;
  return sum;
}

/// The first of the ith eight columns that the thread takes of a row.
__device__ int column_of(int i) { return 8 * (static_cast<int>(threadIdx.x) + i * kThreads); }

template <class Element>
__device__ const Element* row_of(const MatrixTensor& matrix, std::int64_t row) {
  return static_cast<const Element*>(matrix.data) + row * matrix.row_stride;
}

template <class Element>
__device__ void load_weight(const Rows& rows, int column, float (&values)[8]) {
  load_eight<Element>(rows.norm.weight, rows.norm.weight_dtype == DType::kFloat32, column,
                      rows.d - column, values);
}

template <class Element>
__global__ __launch_bounds__(kThreads) void rms_normalize_kernel(
    const __grid_constant__ NormalizeParams params) {
  __shared__ float sums[kWarps];
  follow_stream();
  const std::int64_t row = blockIdx.x;
  const Element* from = row_of<Element>(params.x, row);
  const auto load = [&](int column, float(&x)[8]) {
    load_eight(from + column, params.d - column, x);
  };
  float held[kHeld][8];
#pragma unroll
  for (int i = 0; i < kHeld; ++i) load(column_of(i), held[i]);

  float rstd;
  if (params.norm.rstd != nullptr) {
    rstd = params.norm.rstd[row];
  } else {
    float squares = 0.0f;
    const auto add = [&](const float(&x)[8]) {
#pragma unroll
      for (float value : x) squares = fmaf(value, value, squares);
    };
#pragma unroll
    for (const auto& x : held) add(x);
    for (int i = kHeld; column_of(i) < params.d; ++i) {
      float x[8];
      load(column_of(i), x);
      add(x);
    }
    rstd = rsqrtf(sum_block(squares, sums) / static_cast<float>(params.d) +
                  static_cast<float>(params.norm.eps));
  }
  if (params.kept_rstd != nullptr && threadIdx.x == 0) params.kept_rstd[row] = rstd;
  if (params.n.data == nullptr) return;

  Element* to = static_cast<Element*>(params.n.data) + row * params.n.row_stride;
  const auto normalize = [&](int column, float(&x)[8]) {
    float weight[8];
    load_weight<Element>(params, column, weight);
#pragma unroll
    for (int j = 0; j < 8; ++j) x[j] = x[j] * rstd * weight[j];
    store_eight(to + column, params.d - column, x);
  };
#pragma unroll
  for (int i = 0; i < kHeld; ++i) {
    if (column_of(i) < params.d) normalize(column_of(i), held[i]);
  }
  for (int i = kHeld; column_of(i) < params.d; ++i) {
    float x[8];
    load(column_of(i), x);
    normalize(column_of(i), x);
  }
}

template <class Element>
__global__ __launch_bounds__(kThreads) void rms_norm_input_gradient_kernel(
    const __grid_constant__ InputGradientParams params) {
  __shared__ float sums[kWarps];
  follow_stream();
  const std::int64_t row = blockIdx.x;
  const Element* x_row = row_of<Element>(params.x, row);
  const Element* dn_row = row_of<Element>(params.dn, row);
  const float rstd = params.norm.rstd[row];
  const auto load = [&](int column, float(&m)[8], float(&g)[8]) {
    const int count = params.d - column;
    float weight[8];
    load_eight(x_row + column, count, m);
    load_eight(dn_row + column, count, g);
    load_weight<Element>(params, column, weight);
#pragma unroll
    for (int j = 0; j < 8; ++j) {
      m[j] *= rstd;
      g[j] *= weight[j];
    }
  };
  float m[kHeld][8], g[kHeld][8], dot = 0.0f;
  const auto add = [&](const float(&one)[8], const float(&other)[8]) {
#pragma unroll
    for (int j = 0; j < 8; ++j) dot = fmaf(one[j], other[j], dot);
  };
#pragma unroll
  for (int i = 0; i < kHeld; ++i) {
    load(column_of(i), m[i], g[i]);
    if (column_of(i) < params.d) add(m[i], g[i]);
  }
  for (int i = kHeld; column_of(i) < params.d; ++i) {
    float more_m[8], more_g[8];
    load(column_of(i), more_m, more_g);
    add(more_m, more_g);
  }
  const float mean = sum_block(dot, sums) / static_cast<float>(params.d);
  Element* to = static_cast<Element*>(params.dx.data) + row * params.dx.row_stride;
  const auto store = [&](int column, const float(&own_m)[8], float(&own_g)[8]) {
#pragma unroll
    for (int j = 0; j < 8; ++j) own_g[j] = rstd * (own_g[j] - own_m[j] * mean);
    store_eight(to + column, params.d - column, own_g);
  };
#pragma unroll
  for (int i = 0; i < kHeld; ++i) {
    if (column_of(i) < params.d) store(column_of(i), m[i], g[i]);
  }
  for (int i = kHeld; column_of(i) < params.d; ++i) {
    float more_m[8], more_g[8];
    load(column_of(i), more_m, more_g);
    store(column_of(i), more_m, more_g);
  }
}

/// A CTA per 256 columns and slice of rows; its warps take every eighth row.
template <class Element>
__global__ __launch_bounds__(kThreads) void rms_norm_weight_gradient_kernel(
    const __grid_constant__ WeightGradientParams params) {
  __shared__ float sums[kWarps][256];
  follow_stream();
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int column = static_cast<int>(blockIdx.x) * 256 + 8 * lane;
  const std::int64_t begin = params.M * blockIdx.y / gridDim.y;
  const std::int64_t end = params.M * (blockIdx.y + 1) / gridDim.y;
  float sum[8] = {};
#pragma unroll 4
  for (std::int64_t row = begin + warp; row < end; row += kWarps) {
    const float rstd = params.norm.rstd[row];
    float x[8], dn[8];
    load_eight(row_of<Element>(params.x, row) + column, params.d - column, x);
    load_eight(row_of<Element>(params.dn, row) + column, params.d - column, dn);
#pragma unroll
    for (int j = 0; j < 8; ++j) sum[j] = fmaf(dn[j], x[j] * rstd, sum[j]);
  }
#pragma unroll
  for (int j = 0; j < 8; ++j) sums[warp][8 * lane + j] = sum[j];
  __syncthreads();
  const int mine = static_cast<int>(blockIdx.x * 256 + threadIdx.x);
  if (mine >= params.d) return;
  float total = 0.0f;
#pragma unroll
  for (int i = 0; i < kWarps; ++i) total += sums[i][threadIdx.x];
  params.partial_sums[std::int64_t{blockIdx.y} * params.d + mine] = total;
}

template <class Params>
void launch_rows(const char* name, void (*kernel)(Params), const Params& params, void* stream) {
  if (params.M == 0) return;
  launch_kernel(name, kernel, {.blocks = static_cast<unsigned>(params.M), .threads = kThreads},
                static_cast<cudaStream_t>(stream), params);
}

}  // namespace

int weight_slices(std::int64_t M) {
  return static_cast<int>(std::clamp<std::int64_t>(M / 64, 1, 64));
}

template <class Element>
void launch_normalize(const char* name, const NormalizeParams& params, void* stream) {
  launch_rows(name, rms_normalize_kernel<Element>, params, stream);
}

template <class Element>
void launch_input_gradient(const char* name, const InputGradientParams& params, void* stream) {
  launch_rows(name, rms_norm_input_gradient_kernel<Element>, params, stream);
}

template <class Element>
void launch_weight_gradient(const char* name, const WeightGradientParams& params, void* stream) {
  const int slices = params.M > 0 ? weight_slices(params.M) : 0;
  if (slices > 0) {
    launch_kernel(name, rms_norm_weight_gradient_kernel<Element>,
                  {.blocks = static_cast<unsigned>(ceil_div(params.d, 256)),
                   .blocks_y = static_cast<unsigned>(slices),
                   .threads = kThreads},
                  static_cast<cudaStream_t>(stream), params);
  }
  gemm::SumSlicesParams sum;
  sum.partial_sums = params.partial_sums;
  sum.slices = slices;
  sum.rows = 1;
  sum.columns = params.d;
  sum.result = {params.d_weight, params.d};
  sum.fp32 = params.fp32;
  sum.accumulate = params.accumulate;
  gemm::launch_sum_slices<Element>(name, sum, stream);
}

#define TANDEM_INSTANCES(Element)                                                               \
  template void launch_normalize<Element>(const char*, const NormalizeParams&, void*);          \
  template void launch_input_gradient<Element>(const char*, const InputGradientParams&, void*); \
  template void launch_weight_gradient<Element>(const char*, const WeightGradientParams&, void*);

TANDEM_INSTANCES(__nv_bfloat16)
#ifndef TANDEM_CUDA_DEV
TANDEM_INSTANCES(__half)
#endif

}  // namespace tandem::cuda::rms_norm
