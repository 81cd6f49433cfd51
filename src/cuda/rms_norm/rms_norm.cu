// The kernels of the RMS norm: a warp per row, or for sums over rows a CTA per 256 columns of a
// slice of them. Bound by memory: floor x once, and n, or dn and dx. All loads of a row are under
// way before the first is used.
#include "cuda/rms_norm/rms_norm.h"

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <algorithm>
#include <initializer_list>

#include "cuda/gemm/convert.h"
#include "cuda/parts/eight.cuh"
#include "cuda/parts/stream_order.cuh"
#include "cuda/parts/warp_sums.cuh"
#include "cuda/runtime/launch.h"
#include "cuda/runtime/plan.h"

namespace tandem::cuda::rms_norm {
namespace {

constexpr int kWarps = 4;     // of a CTA, a row each
constexpr int kSumWarps = 8;  // where a CTA sums over rows
constexpr int kHeld = 16;     // eights of a row that a lane keeps between its two passes over them

template <class Element>
__device__ const Element* row_of(const MatrixTensor& matrix, std::int64_t row) {
  return static_cast<const Element*>(matrix.data) + row * matrix.row_stride;
}
template <class Element>
__device__ Element* output_row(const MatrixTensor& matrix, std::int64_t row) {
  return static_cast<Element*>(matrix.data) + row * matrix.row_stride;
}

/// Loads eight elements of a row, or `count` of them and zeros. `kRegular`: rows begin at multiples
/// of 16 bytes and have whole eights.
template <bool kRegular, class Stored>
__device__ Words<Stored> load_words(const Stored* from, int count) {
  Words<Stored> words{};
  if constexpr (kRegular) {
    if (count > 0) words = *reinterpret_cast<const Words<Stored>*>(from);
  } else {
    Stored* to = reinterpret_cast<Stored*>(&words);
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      if (i < count) to[i] = from[i];
    }
  }
  return words;
}

/// The row that the calling warp takes.
__device__ std::int64_t own_row() {
  return std::int64_t{blockIdx.x} * kWarps + static_cast<int>(threadIdx.x / 32);
}

/// The first of the ith eight columns that the lane takes of a row.
__device__ int column_of(int i) { return 8 * (static_cast<int>(threadIdx.x % 32) + 32 * i); }

/// Calls one(i, column) for the eights that a lane keeps, unrolled, and others(column) for the
/// rest.
template <class One, class Others>
__device__ void for_columns(int d, One one, Others others) {
#pragma unroll
  for (int i = 0; i < kHeld; ++i) {
    if (column_of(i) < d) one(i, column_of(i));
  }
  for (int i = kHeld; column_of(i) < d; ++i) others(column_of(i));
}

template <class Element, class Weight, bool kRegular>
__device__ void normalize_row(const NormalizeParams& params, std::int64_t row) {
  const Element* from = row_of<Element>(params.x, row);
  const Weight* weights = static_cast<const Weight*>(params.norm.weight);
  const auto load = [&](int column) {
    return load_words<kRegular>(from + column, params.d - column);
  };
  Words<Element> held[kHeld];
#pragma unroll
  for (int i = 0; i < kHeld; ++i) held[i] = load(column_of(i));

  float rstd;
  if (params.norm.rstd != nullptr) {
    rstd = params.norm.rstd[row];
  } else {
    float squares = 0.0f;
    const auto add = [&](const Words<Element>& words) {
      float x[8];
      unpack(words, x);
#pragma unroll
      for (float value : x) squares = fmaf(value, value, squares);
    };
    for_columns(
        params.d, [&](int i, int) { add(held[i]); }, [&](int column) { add(load(column)); });
    rstd = rsqrtf(sum_warp(squares) / static_cast<float>(params.d) +
                  static_cast<float>(params.norm.eps));
  }
  if (params.kept_rstd != nullptr && threadIdx.x % 32 == 0) params.kept_rstd[row] = rstd;
  if (params.n.data == nullptr) return;

  Element* to = output_row<Element>(params.n, row);
  const auto normalize = [&](int column, const Words<Element>& words) {
    const int count = params.d - column;
    float x[8], weight[8];
    unpack(words, x);
    unpack(load_words<kRegular>(weights + column, count), weight);
#pragma unroll
    for (int j = 0; j < 8; ++j) x[j] = x[j] * rstd * weight[j];
    store_eight(to + column, count, x);
  };
  for_columns(
      params.d, [&](int i, int column) { normalize(column, held[i]); },
      [&](int column) { normalize(column, load(column)); });
}

template <class Element, bool kRegular>
__global__ __launch_bounds__(32 * kWarps) void rms_normalize_kernel(
    const __grid_constant__ NormalizeParams params) {
  follow_stream();
  const std::int64_t row = own_row();
  if (row >= params.M) return;
  if (params.norm.weight_dtype == DType::kFloat32) {
    normalize_row<Element, float, kRegular>(params, row);
  } else {
    normalize_row<Element, Element, kRegular>(params, row);
  }
}

template <class Element, class Weight, bool kRegular>
__device__ void differentiate_row(const InputGradientParams& params, std::int64_t row) {
  const Element* x_row = row_of<Element>(params.x, row);
  const Element* dn_row = row_of<Element>(params.dn, row);
  const Weight* weights = static_cast<const Weight*>(params.norm.weight);
  const float rstd = params.norm.rstd[row];
  const auto load = [&](const Element* from, int column) {
    return load_words<kRegular>(from + column, params.d - column);
  };
  Words<Element> x_held[kHeld], dn_held[kHeld];
#pragma unroll
  for (int i = 0; i < kHeld; ++i) {
    x_held[i] = load(x_row, column_of(i));
    dn_held[i] = load(dn_row, column_of(i));
  }
  /// Makes m = x rstd and g = dn weight.
  const auto weigh = [&](int column, const Words<Element>& x, const Words<Element>& dn,
                         float(&m)[8], float(&g)[8]) {
    float weight[8];
    unpack(x, m);
    unpack(dn, g);
    unpack(load_words<kRegular>(weights + column, params.d - column), weight);
#pragma unroll
    for (int j = 0; j < 8; ++j) {
      m[j] *= rstd;
      g[j] *= weight[j];
    }
  };
  float dot = 0.0f;
  const auto add = [&](int column, const Words<Element>& x, const Words<Element>& dn) {
    float m[8], g[8];
    weigh(column, x, dn, m, g);
#pragma unroll
    for (int j = 0; j < 8; ++j) dot = fmaf(m[j], g[j], dot);
  };
  for_columns(
      params.d, [&](int i, int column) { add(column, x_held[i], dn_held[i]); },
      [&](int column) { add(column, load(x_row, column), load(dn_row, column)); });
  const float mean = sum_warp(dot) / static_cast<float>(params.d);

  Element* to = output_row<Element>(params.dx, row);
  const auto store = [&](int column, const Words<Element>& x, const Words<Element>& dn) {
    float m[8], g[8];
    weigh(column, x, dn, m, g);
#pragma unroll
    for (int j = 0; j < 8; ++j) g[j] = rstd * (g[j] - m[j] * mean);
    store_eight(to + column, params.d - column, g);
  };
  for_columns(
      params.d, [&](int i, int column) { store(column, x_held[i], dn_held[i]); },
      [&](int column) { store(column, load(x_row, column), load(dn_row, column)); });
}

template <class Element, bool kRegular>
__global__ __launch_bounds__(32 * kWarps) void rms_norm_input_gradient_kernel(
    const __grid_constant__ InputGradientParams params) {
  follow_stream();
  const std::int64_t row = own_row();
  if (row >= params.M) return;
  if (params.norm.weight_dtype == DType::kFloat32) {
    differentiate_row<Element, float, kRegular>(params, row);
  } else {
    differentiate_row<Element, Element, kRegular>(params, row);
  }
}

/// A CTA per 256 columns and slice of rows; its warps take every eighth row, some at once.
template <class Element, bool kRegular>
__global__ __launch_bounds__(32 * kSumWarps) void rms_norm_weight_gradient_kernel(
    const __grid_constant__ WeightGradientParams params) {
  constexpr int kRows = 4;
  __shared__ float sums[kSumWarps][256];
  follow_stream();
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int column = static_cast<int>(blockIdx.x) * 256 + 8 * lane;
  const int count = params.d - column;
  const std::int64_t begin = params.M * blockIdx.y / gridDim.y;
  const std::int64_t end = params.M * (blockIdx.y + 1) / gridDim.y;
  float sum[8] = {};
  for (std::int64_t first = begin + warp; first < end; first += kRows * kSumWarps) {
    Words<Element> x_words[kRows], dn_words[kRows];
    float rstd[kRows];
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
      const std::int64_t row = first + i * kSumWarps;
      const int valid = row < end ? count : 0;
      x_words[i] = load_words<kRegular>(row_of<Element>(params.x, row) + column, valid);
      dn_words[i] = load_words<kRegular>(row_of<Element>(params.dn, row) + column, valid);
      rstd[i] = row < end ? params.norm.rstd[row] : 0.0f;
    }
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
      float x[8], dn[8];
      unpack(x_words[i], x);
      unpack(dn_words[i], dn);
#pragma unroll
      for (int j = 0; j < 8; ++j) sum[j] = fmaf(dn[j], x[j] * rstd[i], sum[j]);
    }
  }
#pragma unroll
  for (int j = 0; j < 8; ++j) sums[warp][8 * lane + j] = sum[j];
  __syncthreads();
  const int mine = static_cast<int>(blockIdx.x * 256 + threadIdx.x);
  if (mine >= params.d) return;
  float total = 0.0f;
#pragma unroll
  for (int i = 0; i < kSumWarps; ++i) total += sums[i][threadIdx.x];
  params.partial_sums[std::int64_t{blockIdx.y} * params.d + mine] = total;
}

/// Whether all rows begin at multiples of 16 bytes and have whole eights.
bool is_regular(const Rows& rows, std::initializer_list<MatrixTensor> others = {}) {
  const auto lies_well = [](const MatrixTensor& matrix) {
    return reinterpret_cast<std::uintptr_t>(matrix.data) % 16 == 0 && matrix.row_stride % 8 == 0;
  };
  return rows.d % 8 == 0 && lies_well(rows.x) &&
         lies_well({const_cast<void*>(rows.norm.weight), 0}) &&
         std::all_of(others.begin(), others.end(), lies_well);
}

template <class Params>
void launch_rows(const char* name, void (*kernel)(Params), const Params& params, void* stream) {
  if (params.M == 0) return;
  launch_kernel(
      name, kernel,
      {.blocks = static_cast<unsigned>(ceil_div(params.M, kWarps)), .threads = 32 * kWarps},
      static_cast<cudaStream_t>(stream), params);
}

}  // namespace

int weight_slices(std::int64_t M) {
  return static_cast<int>(std::clamp<std::int64_t>(M / 32, 1, 64));
}

template <class Element>
void launch_normalize(const char* name, const NormalizeParams& params, void* stream) {
  launch_rows(name,
              is_regular(params) ? rms_normalize_kernel<Element, true>
                                 : rms_normalize_kernel<Element, false>,
              params, stream);
}

template <class Element>
void launch_input_gradient(const char* name, const InputGradientParams& params, void* stream) {
  launch_rows(name,
              is_regular(params, {params.dn}) ? rms_norm_input_gradient_kernel<Element, true>
                                              : rms_norm_input_gradient_kernel<Element, false>,
              params, stream);
}

template <class Element>
void launch_weight_gradient(const char* name, const WeightGradientParams& params, void* stream) {
  const int slices = params.M > 0 ? weight_slices(params.M) : 0;
  if (slices > 0) {
    launch_kernel(name,
                  is_regular(params, {params.dn}) ? rms_norm_weight_gradient_kernel<Element, true>
                                                  : rms_norm_weight_gradient_kernel<Element, false>,
                  {.blocks = static_cast<unsigned>(ceil_div(params.d, 256)),
                   .blocks_y = static_cast<unsigned>(slices),
                   .threads = 32 * kSumWarps},
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
