// The kernels of the RMS norm: a CTA per row, or for sums over rows per 256 columns of a slice of
// them. Bound by memory: floor x once, and n, or dn and dx. All loads of a row are under way before
// the first is used.
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

constexpr int kWarps = 4;
constexpr int kThreads = 32 * kWarps;
constexpr int kSumWarps = 8;  // where a CTA sums over rows

template <class Element>
__device__ Element* row_of(const MatrixTensor& matrix, std::int64_t row) {
  return static_cast<Element*>(matrix.data) + row * matrix.row_stride;
}

/// Loads eight elements of a row, or `count` of them and zeros. `kRegular`: rows begin at multiples
/// of 16 bytes and have whole eights.
template <bool kRegular, class Stored>
__device__ Words<Stored> load_words(const Stored* from, int count) {
  if constexpr (kRegular) {
    return cuda::load_words(from, count > 0);
  } else {
    Words<Stored> words{};
    Stored* to = reinterpret_cast<Stored*>(&words);
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      if (i < count) to[i] = from[i];
    }
    return words;
  }
}

/// The eights of a row that a thread takes: `kHeld` that stay in registers between two passes over
/// them, and what a longer row has beyond, which is loaded again.
template <class Stored, bool kRegular, int kHeld>
class RowPart {
 public:
  __device__ RowPart(const Stored* row, int d) : row_(row), d_(d) {
#pragma unroll
    for (int i = 0; i < kHeld; ++i) held_[i] = load(i);
  }

  static __device__ int column(int i) { return 8 * (static_cast<int>(threadIdx.x) + i * kThreads); }
  __device__ void get(int i, float (&values)[8]) const { unpack(held_[i], values); }
  __device__ void reload(int i, float (&values)[8]) const { unpack(load(i), values); }

 private:
  __device__ Words<Stored> load(int i) const {
    return load_words<kRegular>(row_ + column(i), d_ - column(i));
  }

  const Stored* row_;
  int d_;
  Words<Stored> held_[kHeld];
};

/// Calls get(i) for the eights that the thread keeps and reload(i) for those beyond.
template <int kHeld, class Get, class Reload>
__device__ void for_eights(int d, Get get, Reload reload) {
#pragma unroll
  for (int i = 0; i < kHeld; ++i) get(i);
  for (int i = kHeld; 8 * (static_cast<int>(threadIdx.x) + i * kThreads) < d; ++i) reload(i);
}

/// Sums over the CTA, in one order.
__device__ float sum_block(float value) {
  __shared__ float sums[kWarps];
  value = sum_warp(value);
  if (threadIdx.x % 32 == 0) sums[threadIdx.x / 32] = value;
  __syncthreads();
  float sum = 0.0f;
#pragma unroll
  for (float part : sums) sum += part;
  return sum;
}

template <class Element, class Weight, bool kRegular, int kHeld>
__device__ void normalize_row(const NormalizeParams& params) {
  const std::int64_t row = blockIdx.x;
  const RowPart<Element, kRegular, kHeld> x(row_of<const Element>(params.x, row), params.d);
  const RowPart<Weight, kRegular, kHeld> weight(static_cast<const Weight*>(params.norm.weight),
                                                params.d);
  float rstd;
  if (params.norm.rstd != nullptr) {
    rstd = params.norm.rstd[row];
  } else {
    float squares = 0.0f;
    const auto add = [&](const float(&values)[8]) {
#pragma unroll
      for (float value : values) squares = fmaf(value, value, squares);
    };
    float values[8];
    for_eights<kHeld>(
        params.d, [&](int i) { x.get(i, values), add(values); },
        [&](int i) { x.reload(i, values), add(values); });
    rstd = rsqrtf(sum_block(squares) / static_cast<float>(params.d) +
                  static_cast<float>(params.norm.eps));
  }
  if (params.kept_rstd != nullptr && threadIdx.x == 0) params.kept_rstd[row] = rstd;
  if (params.n.data == nullptr) return;

  Element* to = row_of<Element>(params.n, row);
  const auto store = [&](int i, float(&values)[8], const float(&weights)[8]) {
#pragma unroll
    for (int j = 0; j < 8; ++j) values[j] = values[j] * rstd * weights[j];
    store_eight(to + x.column(i), params.d - x.column(i), values);
  };
  float values[8], weights[8];
  for_eights<kHeld>(
      params.d, [&](int i) { x.get(i, values), weight.get(i, weights), store(i, values, weights); },
      [&](int i) { x.reload(i, values), weight.reload(i, weights), store(i, values, weights); });
}

template <class Element, bool kRegular, int kHeld>
__global__ __launch_bounds__(kThreads) void rms_normalize_kernel(
    const __grid_constant__ NormalizeParams params) {
  follow_stream();
  if (params.norm.weight_dtype == DType::kFloat32) {
    normalize_row<Element, float, kRegular, kHeld>(params);
  } else {
    normalize_row<Element, Element, kRegular, kHeld>(params);
  }
}

template <class Element, class Weight, bool kRegular, int kHeld>
__device__ void differentiate_row(const InputGradientParams& params) {
  const std::int64_t row = blockIdx.x;
  const RowPart<Element, kRegular, kHeld> x(row_of<const Element>(params.x, row), params.d);
  const RowPart<Element, kRegular, kHeld> dn(row_of<const Element>(params.dn, row), params.d);
  const RowPart<Weight, kRegular, kHeld> weight(static_cast<const Weight*>(params.norm.weight),
                                                params.d);
  const float rstd = params.norm.rstd[row];
  float m[8], g[8], weights[8];
  const auto weigh = [&] {  // m = x rstd, g = dn weight
#pragma unroll
    for (int j = 0; j < 8; ++j) {
      m[j] *= rstd;
      g[j] *= weights[j];
    }
  };
  const auto get = [&](int i) { x.get(i, m), dn.get(i, g), weight.get(i, weights), weigh(); };
  const auto reload = [&](int i) {
    x.reload(i, m), dn.reload(i, g), weight.reload(i, weights), weigh();
  };
  float dot = 0.0f;
  const auto add = [&](int i) {
    if (x.column(i) >= params.d) return;  // rstd may be inf, and then m is NaN there
#pragma unroll
    for (int j = 0; j < 8; ++j) dot = fmaf(m[j], g[j], dot);
  };
  for_eights<kHeld>(
      params.d, [&](int i) { get(i), add(i); }, [&](int i) { reload(i), add(i); });
  const float mean = sum_block(dot) / static_cast<float>(params.d);

  Element* to = row_of<Element>(params.dx, row);
  const auto store = [&](int i) {
#pragma unroll
    for (int j = 0; j < 8; ++j) g[j] = rstd * (g[j] - m[j] * mean);
    store_eight(to + x.column(i), params.d - x.column(i), g);
  };
  for_eights<kHeld>(
      params.d, [&](int i) { get(i), store(i); }, [&](int i) { reload(i), store(i); });
}

template <class Element, bool kRegular, int kHeld>
__global__ __launch_bounds__(kThreads) void rms_norm_input_gradient_kernel(
    const __grid_constant__ InputGradientParams params) {
  follow_stream();
  if (params.norm.weight_dtype == DType::kFloat32) {
    differentiate_row<Element, float, kRegular, kHeld>(params);
  } else {
    differentiate_row<Element, Element, kRegular, kHeld>(params);
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
      x_words[i] = load_words<kRegular>(row_of<const Element>(params.x, row) + column, valid);
      dn_words[i] = load_words<kRegular>(row_of<const Element>(params.dn, row) + column, valid);
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
  launch_kernel(name, kernel, {.blocks = static_cast<unsigned>(params.M), .threads = kThreads},
                static_cast<cudaStream_t>(stream), params);
}

constexpr int kFewHeld = 4;  // rows of up to 4096 elements
constexpr int kManyHeld = 8;
bool is_short(const Rows& rows) { return rows.d <= 8 * kThreads * kFewHeld; }

}  // namespace

int weight_slices(std::int64_t M) {
  return static_cast<int>(std::clamp<std::int64_t>(M / 32, 1, 64));
}

template <class Element>
void launch_normalize(const char* name, const NormalizeParams& params, void* stream) {
  const auto kernel = !is_regular(params) ? rms_normalize_kernel<Element, false, kFewHeld>
                      : is_short(params)  ? rms_normalize_kernel<Element, true, kFewHeld>
                                          : rms_normalize_kernel<Element, true, kManyHeld>;
  launch_rows(name, kernel, params, stream);
}

template <class Element>
void launch_input_gradient(const char* name, const InputGradientParams& params, void* stream) {
  const auto kernel = !is_regular(params, {params.dn})
                          ? rms_norm_input_gradient_kernel<Element, false, kFewHeld>
                      : is_short(params) ? rms_norm_input_gradient_kernel<Element, true, kFewHeld>
                                         : rms_norm_input_gradient_kernel<Element, true, kManyHeld>;
  launch_rows(name, kernel, params, stream);
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
