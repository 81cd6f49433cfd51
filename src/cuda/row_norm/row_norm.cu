// The kernels of the row norms: a CTA per row, or for sums over rows a CTA per 256
// columns of a slice of them. Bound by memory: floor x once, and n, or dn and dx.
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <algorithm>
#include <initializer_list>

#include "cuda/gemm/convert.h"
#include "cuda/parts/stream_order.cuh"
#include "cuda/row_norm/normalize.cuh"
#include "cuda/runtime/launch.h"
#include "cuda/runtime/plan.h"

namespace tandem::cuda::row_norm {
namespace {

using Cta = Team<128>;

constexpr int kSumWarps = 8;  // where a CTA sums over rows

template <class Element, bool kRegular, bool kCenters, int kHeld>
__global__ __launch_bounds__(Cta::kThreads) void normalize_kernel(
    const __grid_constant__ NormalizeParams params) {
  follow_stream();
  normalize_rows<Cta, Element, kRegular, kCenters, kHeld, 1>(params, blockIdx.x, params.M);
}

template <class Element, bool kRegular, bool kCenters, int kHeld>
__global__ __launch_bounds__(Cta::kThreads) void norm_input_gradient_kernel(
    const __grid_constant__ InputGradientParams params) {
  using Part = RowPart<Cta, Element, kRegular, kHeld>;
  follow_stream();
  const std::int64_t row = blockIdx.x;
  const int d = params.d;
  const auto part = [&](const MatrixTensor& matrix) {
    return Part(matrix.data != nullptr ? row_of<const Element>(matrix, row) : nullptr, d);
  };
  const Part x = part(params.x), dn = part(params.dn), addend = part(params.addend);
  const WeightPart<Cta, Element, kRegular, kHeld> weight(
      params.weight.data, params.weight.dtype == DType::kFloat32, d, 1.0f);
  const float rstd = params.rstd[row];
  const float mean = kCenters ? params.mean[row] : 0.0f;
  float m[8], g[8], weights[8], more[8];
  const auto weigh = [&] {
#pragma unroll
    for (int j = 0; j < 8; ++j) {
      m[j] = (m[j] - mean) * rstd;
      g[j] *= weights[j];
    }
  };
  const auto get = [&](int i) { x.get(i, m), dn.get(i, g), weight.get(i, weights), weigh(); };
  const auto reload = [&](int i) {
    x.reload(i, m), dn.reload(i, g), weight.reload(i, weights), weigh();
  };
  float means[2] = {};  // of g m and of g
  const auto add = [&](int i) {
#pragma unroll
    for (int j = 0; j < 8; ++j) {  // rstd may be inf, and then m is NaN behind the row's end
      if (Cta::column(i) + (kRegular ? 0 : j) >= d) continue;
      means[0] = fmaf(m[j], g[j], means[0]);
      if (kCenters) means[1] += g[j];
    }
  };
  Cta::for_eights<kHeld>(
      d, [&](int i) { get(i), add(i); }, [&](int i) { reload(i), add(i); });
  Cta::sum(means);
#pragma unroll
  for (float& value : means) value /= static_cast<float>(d);

  Element* to = row_of<Element>(params.dx, row);
  const auto store = [&](int i) {
#pragma unroll
    for (int j = 0; j < 8; ++j) g[j] = more[j] + rstd * (g[j] - m[j] * means[0] - means[1]);
    store_eight(to + Cta::column(i), d - Cta::column(i), g);
  };
  Cta::for_eights<kHeld>(
      d, [&](int i) { get(i), addend.get(i, more), store(i); },
      [&](int i) { reload(i), addend.reload(i, more), store(i); });
}

/// A CTA per 256 columns and slice of rows; its warps take every eighth row, some at once.
template <class Element, bool kRegular, bool kCenters>
__global__ __launch_bounds__(32 * kSumWarps) void norm_weight_gradient_kernel(
    const __grid_constant__ WeightGradientParams params) {
  constexpr int kRows = 4;
  __shared__ float sums[2][kSumWarps][256];
  follow_stream();
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int column = static_cast<int>(blockIdx.x) * 256 + 8 * lane;
  const int count = params.d - column;
  const std::int64_t begin = params.M * blockIdx.y / gridDim.y;
  const std::int64_t end = params.M * (blockIdx.y + 1) / gridDim.y;
  float weight[8] = {}, bias[8] = {};
  for (std::int64_t first = begin + warp; first < end; first += kRows * kSumWarps) {
    Words<Element> x_words[kRows], dn_words[kRows];
    float rstd[kRows], mean[kRows] = {};
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
      const std::int64_t row = first + i * kSumWarps;
      const int valid = row < end ? count : 0;
      x_words[i] = load_words<kRegular>(row_of<const Element>(params.x, row) + column, valid);
      dn_words[i] = load_words<kRegular>(row_of<const Element>(params.dn, row) + column, valid);
      rstd[i] = row < end ? params.rstd[row] : 0.0f;
      if (kCenters && row < end) mean[i] = params.mean[row];
    }
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
      float x[8], dn[8];
      unpack(x_words[i], x);
      unpack(dn_words[i], dn);
#pragma unroll
      for (int j = 0; j < 8; ++j) {
        weight[j] = fmaf(dn[j], (x[j] - mean[i]) * rstd[i], weight[j]);
        bias[j] += dn[j];
      }
    }
  }
#pragma unroll
  for (int j = 0; j < 8; ++j) {
    sums[0][warp][8 * lane + j] = weight[j];
    sums[1][warp][8 * lane + j] = bias[j];
  }
  __syncthreads();
  const int mine = static_cast<int>(blockIdx.x * 256 + threadIdx.x);
  if (mine >= params.d) return;
#pragma unroll
  for (int of = 0; of < 2; ++of) {
    float total = 0.0f;
#pragma unroll
    for (int i = 0; i < kSumWarps; ++i) total += sums[of][i][threadIdx.x];
    params.partial_sums[(std::int64_t{of} * gridDim.y + blockIdx.y) * params.d + mine] = total;
  }
}

bool lies_well(const MatrixTensor& matrix) {
  return reinterpret_cast<std::uintptr_t>(matrix.data) % 16 == 0 && matrix.row_stride % 8 == 0;
}
bool lies_well(const WeightVector& vector) {
  return reinterpret_cast<std::uintptr_t>(vector.data) % 16 == 0;
}

template <class Params>
void launch_rows(const char* name, void (*kernel)(Params), const Params& params, void* stream) {
  if (params.M == 0) return;
  launch_kernel(name, kernel, {.blocks = static_cast<unsigned>(params.M), .threads = Cta::kThreads},
                static_cast<cudaStream_t>(stream), params);
}

constexpr int kFewHeld = 4;  // rows of up to 4096 elements
constexpr int kManyHeld = 8;
bool is_short(const Rows& rows) { return rows.d <= 8 * Cta::kThreads * kFewHeld; }

template <class Element, bool kCenters>
void normalize(const char* name, const NormalizeParams& params, void* stream) {
  const auto kernel = !is_regular(params) ? normalize_kernel<Element, false, kCenters, kFewHeld>
                      : is_short(params)  ? normalize_kernel<Element, true, kCenters, kFewHeld>
                                          : normalize_kernel<Element, true, kCenters, kManyHeld>;
  launch_rows(name, kernel, params, stream);
}

template <class Element, bool kCenters>
void input_gradient(const char* name, const InputGradientParams& params, void* stream) {
  const auto kernel = !is_regular(params, {params.dn, params.addend})
                          ? norm_input_gradient_kernel<Element, false, kCenters, kFewHeld>
                      : is_short(params)
                          ? norm_input_gradient_kernel<Element, true, kCenters, kFewHeld>
                          : norm_input_gradient_kernel<Element, true, kCenters, kManyHeld>;
  launch_rows(name, kernel, params, stream);
}

template <class Element, bool kCenters>
void weight_partial_sums(const char* name, const WeightGradientParams& params, int slices,
                         void* stream) {
  launch_kernel(name,
                is_regular(params, {params.dn})
                    ? norm_weight_gradient_kernel<Element, true, kCenters>
                    : norm_weight_gradient_kernel<Element, false, kCenters>,
                {.blocks = static_cast<unsigned>(ceil_div(params.d, 256)),
                 .blocks_y = static_cast<unsigned>(slices),
                 .threads = 32 * kSumWarps},
                static_cast<cudaStream_t>(stream), params);
}

}  // namespace

bool is_regular(const Rows& rows, std::initializer_list<MatrixTensor> others) {
  return rows.d % 8 == 0 && lies_well(rows.x) && lies_well(rows.weight) && lies_well(rows.bias) &&
         std::all_of(others.begin(), others.end(),
                     [](const MatrixTensor& other) { return lies_well(other); });
}

int weight_slices(std::int64_t M) {
  return static_cast<int>(std::clamp<std::int64_t>(M / 32, 1, 64));
}

template <class Element>
void launch_normalize(const char* name, const NormalizeParams& params, void* stream) {
  params.centers ? normalize<Element, true>(name, params, stream)
                 : normalize<Element, false>(name, params, stream);
}

template <class Element>
void launch_input_gradient(const char* name, const InputGradientParams& params, void* stream) {
  params.centers ? input_gradient<Element, true>(name, params, stream)
                 : input_gradient<Element, false>(name, params, stream);
}

template <class Element>
void launch_weight_gradient(const char* name, const WeightGradientParams& params, void* stream) {
  const int slices = params.M > 0 && params.dn.data != nullptr ? weight_slices(params.M) : 0;
  if (slices > 0) {
    params.centers ? weight_partial_sums<Element, true>(name, params, slices, stream)
                   : weight_partial_sums<Element, false>(name, params, slices, stream);
  }
  const auto finish = [&](const WeightVectorGradient& to, int of) {
    if (to.data == nullptr) return;
    gemm::SumSlicesParams sum;
    sum.partial_sums = params.partial_sums + std::int64_t{of} * slices * params.d;
    sum.slices = slices;
    sum.rows = 1;
    sum.columns = params.d;
    sum.result = {to.data, params.d};
    sum.fp32 = to.dtype == DType::kFloat32;
    sum.accumulate = params.accumulate;
    gemm::launch_sum_slices<Element>(name, sum, stream);
  };
  finish(params.d_weight, 0);
  finish(params.d_bias, 1);
}

#define TANDEM_INSTANCES(Element)                                                               \
  template void launch_normalize<Element>(const char*, const NormalizeParams&, void*);          \
  template void launch_input_gradient<Element>(const char*, const InputGradientParams&, void*); \
  template void launch_weight_gradient<Element>(const char*, const WeightGradientParams&, void*);

TANDEM_INSTANCES(__nv_bfloat16)
#ifndef TANDEM_CUDA_DEV
TANDEM_INSTANCES(__half)
#endif

}  // namespace tandem::cuda::row_norm
