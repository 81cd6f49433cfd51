// The kernels of the row norms: a CTA per row; in a gradient with sums over rows a CTA per slice of
// them, which it takes one after the other. Rows too long or too oddly placed for that leave the
// sums to a pass of their own. Bound by memory: floor x once, and n, or dn and dx.
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <algorithm>
#include <initializer_list>

#include "cuda/gemm/sum_slices.h"
#include "cuda/parts/rows_ahead.cuh"
#include "cuda/parts/stream_order.cuh"
#include "cuda/row_norm/row.cuh"
#include "cuda/row_norm/row_norm.h"
#include "cuda/runtime/launch.h"
#include "cuda/runtime/plan.h"

namespace tandem::cuda::row_norm {
namespace {

constexpr int kSumWarps = 8;  // where a CTA sums over rows

/// Threads and registers for rows of some length: CTAs of kThreads, of which kCtas are on a
/// multiprocessor at once in a gradient.
template <int kThreadsT, int kHeldT, int kCtasT>
struct Shape {
  static constexpr int kThreads = kThreadsT;
  static constexpr int kHeld = kHeldT;
  static constexpr int kCtas = kCtasT;
};

template <class Element, bool kRegular, bool kCenters, class Shape>
__global__ __launch_bounds__(Shape::kThreads) void normalize_kernel(
    const __grid_constant__ NormalizeParams params) {
  constexpr int kHeld = Shape::kHeld;
  // why not two vectors of weights: rows wait for each other where a CTA takes many registers.
  constexpr int kHeldWeights = kCenters ? 0 : kHeld;
  using Cta = RowCta<Shape::kThreads>;
  follow_stream();
  const std::int64_t row = blockIdx.x;
  const int d = params.d;
  const RowPart<Cta, Element, kRegular, kHeld> x(row_of<const Element>(params.x, row), d);
  const WeightPart<Cta, Element, kRegular, kHeldWeights> weight(
      params.weight.data, params.weight.dtype == DType::kFloat32, d, 1.0f);
  const WeightPart<Cta, Element, kRegular, kHeldWeights> bias(
      params.bias.data, params.bias.dtype == DType::kFloat32, d, 0.0f);
  float values[8], weights[8], biases[8];
  const auto mean_of = [&](auto term) {
    float sum[1] = {};
    const auto add = [&](int i) {
#pragma unroll
      for (int j = 0; j < 8; ++j) {
        if (Cta::column(i) + (kRegular ? 0 : j) < d) sum[0] += term(values[j]);
      }
    };
    Cta::template for_eights<kHeld>(
        d, [&](int i) { x.get(i, values), add(i); }, [&](int i) { x.reload(i, values), add(i); });
    Cta::sum(sum);
    return __fdividef(sum[0], static_cast<float>(d));
  };
  float mean = 0.0f;
  if constexpr (kCenters) mean = mean_of([](float value) { return value; });
  float rstd;
  if (params.rstd != nullptr) {
    rstd = params.rstd[row];
  } else {
    const float variance = mean_of([&](float value) { return (value - mean) * (value - mean); });
    rstd = rsqrtf(variance + static_cast<float>(params.eps));
  }
  if (threadIdx.x == 0) {
    if (params.kept_mean != nullptr) params.kept_mean[row] = mean;
    if (params.kept_rstd != nullptr) params.kept_rstd[row] = rstd;
  }
  if (params.n.data == nullptr) return;
  Element* to = row_of<Element>(params.n, row);
  const auto store = [&](int i) {
#pragma unroll
    for (int j = 0; j < 8; ++j) {
      const float m = (values[j] - mean) * rstd;
      values[j] = kCenters ? fmaf(m, weights[j], biases[j]) : m * weights[j];
    }
    store_eight(to + Cta::column(i), d - Cta::column(i), values);
  };
  const auto load_biases = [&](int i) {
    if constexpr (kCenters) bias.get(i, biases);
  };
  Cta::template for_eights<kHeld>(
      d, [&](int i) { x.get(i, values), weight.get(i, weights), load_biases(i), store(i); },
      [&](int i) {
        x.reload(i, values), weight.reload(i, weights);
        if constexpr (kCenters) bias.reload(i, biases);
        store(i);
      });
}

/// What a row's gradients are of eight elements: of x, m = (x - mean) rstd, and of dn. Replaces
/// them by n, without a bias, and dx.
template <bool kCenters>
struct RowGradient {
  float rstd, mean;
  float means[2] = {};  // of g m and of g, where g = dn weight

  __device__ RowGradient(const GradientParams& params, std::int64_t row)
      : rstd(params.rstd[row]), mean(kCenters ? params.mean[row] : 0.0f) {}

  /// Adds element j to the row's sums; m and g are what they say behind it.
  __device__ void add(float& m, float& g, float weight) {
    m = (m - mean) * rstd;
    g *= weight;
    means[0] = fmaf(m, g, means[0]);
    if (kCenters) means[1] += g;
  }
  template <class Cta>
  __device__ void finish_means(int d) {
    Cta::sum(means);
#pragma unroll
    for (float& value : means) value = __fdividef(value, static_cast<float>(d));
  }
  __device__ void differentiate(float& m, float& g, float weight, float addend) const {
    m = (m - mean) * rstd;
    g = addend + rstd * (g * weight - m * means[0] - means[1]);
    m *= weight;
  }
};

/// Stores eight elements of a row, where they are wanted.
template <class Cta, class Element>
__device__ void put_eight(const MatrixTensor& to, std::int64_t row, int d, int i,
                          const float (&values)[8]) {
  if (to.data == nullptr) return;
  store_eight(row_of<Element>(to, row) + Cta::column(i), d - Cta::column(i), values);
}

/// A CTA per row.
template <class Element, bool kRegular, bool kCenters, class Shape>
__global__ __launch_bounds__(Shape::kThreads, Shape::kCtas) void norm_gradient_kernel(
    const __grid_constant__ GradientParams params) {
  constexpr int kHeld = Shape::kHeld;
  using Cta = RowCta<Shape::kThreads>;
  using Part = RowPart<Cta, Element, kRegular, kHeld>;
  follow_stream();
  const int d = params.d;
  const std::int64_t row = blockIdx.x;
  const auto part = [&](const MatrixTensor& of) {
    return Part(of.data != nullptr ? row_of<const Element>(of, row) : nullptr, d);
  };
  const Part x = part(params.x), dn = part(params.dn), addend = part(params.addend);
  const WeightPart<Cta, Element, kRegular, 0> weight(
      params.weight.data, params.weight.dtype == DType::kFloat32, d, 1.0f);
  RowGradient<kCenters> gradient(params, row);
  float m[8], g[8], weights[8], more[8];
  const auto get = [&](int i) { x.get(i, m), dn.get(i, g), weight.get(i, weights); };
  const auto reload = [&](int i) { x.reload(i, m), dn.reload(i, g), weight.reload(i, weights); };
  const auto add = [&](int i) {
#pragma unroll
    for (int j = 0; j < 8; ++j) {  // rstd may be inf, and then m is NaN behind the row's end
      if (Cta::column(i) + (kRegular ? 0 : j) < d) gradient.add(m[j], g[j], weights[j]);
    }
  };
  Cta::template for_eights<kHeld>(
      d, [&](int i) { get(i), add(i); }, [&](int i) { reload(i), add(i); });
  gradient.template finish_means<Cta>(d);
  const auto store = [&](int i) {
#pragma unroll
    for (int j = 0; j < 8; ++j) gradient.differentiate(m[j], g[j], weights[j], more[j]);
    put_eight<Cta, Element>(params.dx, row, d, i, g);
    if constexpr (!kCenters) put_eight<Cta, Element>(params.n, row, d, i, m);
  };
  Cta::template for_eights<kHeld>(
      d, [&](int i) { get(i), addend.get(i, more), store(i); },
      [&](int i) { reload(i), addend.reload(i, more), store(i); });
}

/// Rows that norm_gradient_sums_kernel loads ahead.
template <class Shape>
__host__ __device__ constexpr int rows_ahead(int d) {
  constexpr int kMostBytes = 220 * 1024 / Shape::kCtas;
  return RowsAhead<3>::stages_in(kMostBytes, 2 * d);
}

/// The same with d_weight's and d_bias's partial sums: a CTA per slice of rows, which it takes one
/// after the other. Rows begin at multiples of 16 bytes.
template <class Element, bool kCenters, class Shape>
__global__ __launch_bounds__(Shape::kThreads, Shape::kCtas) void norm_gradient_sums_kernel(
    const __grid_constant__ GradientParams params) {
  extern __shared__ __align__(16) char memory[];
  constexpr int kHeld = Shape::kHeld;
  using Cta = RowCta<Shape::kThreads>;
  follow_stream();
  const int d = params.d;
  const std::int64_t slices = gridDim.x, slice = blockIdx.x;
  const std::int64_t begin = params.M * slice / slices, end = params.M * (slice + 1) / slices;
  const auto row_at = [&](int matrix, std::int64_t row) -> const Element* {
    const MatrixTensor& of = matrix == 0 ? params.x : matrix == 1 ? params.dn : params.addend;
    return of.data != nullptr ? row_of<const Element>(of, row) : nullptr;
  };
  RowsAhead<3> ahead(memory, rows_ahead<Shape>(d), 2 * d);
  ahead.begin(begin, end, row_at);
  const WeightPart<Cta, Element, true, kCenters ? 0 : kHeld> weight(
      params.weight.data, params.weight.dtype == DType::kFloat32, d, 1.0f);
  // Of this thread's columns, over the rows.
  float weight_sums[kHeld][8] = {}, bias_sums[kCenters ? kHeld : 1][8] = {};
  const bool wants_rows = params.dx.data != nullptr || params.n.data != nullptr;
  const bool adds = params.addend.data != nullptr;
  RowGradient<kCenters> next(params, begin);
  for (std::int64_t row = begin; row < end; ++row, ahead.advance()) {
    RowGradient<kCenters> gradient = next;
    if (row + 1 < end) next = RowGradient<kCenters>(params, row + 1);
    float m[8], g[8], weights[8], more[8] = {};
    const auto load = [&](int matrix, int i, float(&values)[8]) {
      const auto* const of_row = reinterpret_cast<const Element*>(ahead.row(matrix));
      unpack(load_words(of_row + Cta::column(i), true), values);
    };
    ahead.wait();
#pragma unroll
    for (int i = 0; i < kHeld; ++i) {
      if (Cta::column(i) >= d) continue;
      load(0, i, m), load(1, i, g), weight.get(i, weights);
#pragma unroll
      for (int j = 0; j < 8; ++j) {
        const float dn = g[j];
        gradient.add(m[j], g[j], weights[j]);
        weight_sums[i][j] = fmaf(dn, m[j], weight_sums[i][j]);
        if constexpr (kCenters) bias_sums[i][j] += dn;
      }
    }
    if (wants_rows) {
      gradient.template finish_means<Cta>(d);
    } else {
      __syncthreads();
    }
    ahead.replace_before(row, begin, end, row_at);
    if (!wants_rows) continue;
#pragma unroll
    for (int i = 0; i < kHeld; ++i) {
      if (Cta::column(i) >= d) continue;
      load(0, i, m), load(1, i, g), weight.get(i, weights);
      if (adds) load(2, i, more);
#pragma unroll
      for (int j = 0; j < 8; ++j) gradient.differentiate(m[j], g[j], weights[j], more[j]);
      put_eight<Cta, Element>(params.dx, row, d, i, g);
      if constexpr (!kCenters) put_eight<Cta, Element>(params.n, row, d, i, m);
    }
  }
  float* const to = params.partial_sums + slice * d;
#pragma unroll
  for (int i = 0; i < kHeld; ++i) {
    store_eight(to + Cta::column(i), d - Cta::column(i), weight_sums[i]);
    if constexpr (kCenters) {
      if (params.d_bias.data == nullptr) continue;
      store_eight(to + slices * d + Cta::column(i), d - Cta::column(i), bias_sums[i]);
    }
  }
}

/// A CTA per 256 columns and slice of rows; its warps take every eighth row, some at once.
template <class Element, bool kRegular, bool kCenters>
__global__ __launch_bounds__(32 * kSumWarps) void norm_weight_gradient_kernel(
    const __grid_constant__ GradientParams params) {
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
    if (of == 1 && params.d_bias.data == nullptr) continue;
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

/// Calls body(Shape{}) with that of rows as long as these; longer ones do not stay in registers.
constexpr int kMostHeld = 8 * 256 * 4;
template <class Body>
auto with_shape(int d, const Body& body) {
  if (d <= 8 * 128) return body(Shape<128, 1, 5>{});
  if (d <= 8 * 128 * 2) return body(Shape<128, 2, 3>{});
  if (d <= 8 * 128 * 4) return body(Shape<128, 4, 2>{});
  return body(Shape<256, 4, 1>{});
}
using AnyShape = Shape<128, 2, 4>;

/// The same for a gradient with sums, whose rows are read ahead: more threads, with fewer registers
/// each, hide more of what they wait for. Those of a layer norm need more.
template <bool kCenters, class Body>
auto with_summing_shape(int d, const Body& body) {
  if constexpr (kCenters) {
    return with_shape(d, body);
  } else {
    if (d <= 8 * 128) return body(Shape<128, 1, 5>{});
    if (d <= 8 * 128 * 2) return body(Shape<128, 2, 3>{});
    if (d <= 8 * 256 * 2) return body(Shape<256, 2, 2>{});
    if (d <= 8 * 640) return body(Shape<640, 1, 1>{});
    return body(Shape<512, 2, 1>{});
  }
}

template <class Shape, class Params>
void launch(const char* name, void (*kernel)(Params), const Params& params, std::int64_t blocks,
            void* stream, std::size_t shared_bytes = 0) {
  if (blocks == 0) return;
  launch_kernel(name, kernel,
                {.blocks = static_cast<unsigned>(blocks),
                 .threads = Shape::kThreads,
                 .shared_bytes = shared_bytes},
                static_cast<cudaStream_t>(stream), params);
}

template <class Element, bool kCenters>
void normalize(const char* name, const NormalizeParams& params, void* stream) {
  if (!is_regular(params, {params.n})) {
    return launch<AnyShape>(name, normalize_kernel<Element, false, kCenters, AnyShape>, params,
                            params.M, stream);
  }
  with_shape(params.d, [&]<class Shape>(Shape) {
    launch<Shape>(name, normalize_kernel<Element, true, kCenters, Shape>, params, params.M, stream);
  });
}

/// Whether one pass over the rows makes all gradients.
bool sums_beside(const GradientParams& params) {
  return is_regular(params, {params.dn, params.addend, params.n, params.dx}) &&
         params.d <= kMostHeld;
}

/// As many CTAs as an H200 holds at once, each with some rows: a slice's sums are as many bytes as
/// two or three of them.
int slices_beside(std::int64_t M, int d) {
  constexpr int kFewestRows = 4;
  const int at_once = with_shape(d, []<class Shape>(Shape) { return 132 * Shape::kCtas; });
  return static_cast<int>(std::clamp<std::int64_t>(M / kFewestRows, 1, at_once));
}

int slices_apart(std::int64_t M) {
  return static_cast<int>(std::clamp<std::int64_t>(M / 32, 1, 64));
}

/// Returns the number of slices whose sums are there.
template <class Element, bool kCenters>
int differentiate(const char* name, const GradientParams& params, bool sums, void* stream) {
  const bool beside = sums && sums_beside(params);
  if (beside) {
    const int slices = slices_beside(params.M, params.d);
    with_summing_shape<kCenters>(params.d, [&]<class Shape>(Shape) {
      launch<Shape>(name, norm_gradient_sums_kernel<Element, kCenters, Shape>, params, slices,
                    stream, RowsAhead<3>::bytes(rows_ahead<Shape>(params.d), 2 * params.d));
    });
    return slices;
  }
  int slices = 0;
  if (sums) {  // before n may lie where dn did
    slices = slices_apart(params.M);
    launch_kernel(name,
                  is_regular(params, {params.dn})
                      ? norm_weight_gradient_kernel<Element, true, kCenters>
                      : norm_weight_gradient_kernel<Element, false, kCenters>,
                  {.blocks = static_cast<unsigned>(ceil_div(params.d, 256)),
                   .blocks_y = static_cast<unsigned>(slices),
                   .threads = 32 * kSumWarps},
                  static_cast<cudaStream_t>(stream), params);
  }
  if (params.dx.data == nullptr && params.n.data == nullptr) return slices;
  if (is_regular(params, {params.dn, params.addend, params.n, params.dx})) {
    with_shape(params.d, [&]<class Shape>(Shape) {
      launch<Shape>(name, norm_gradient_kernel<Element, true, kCenters, Shape>, params, params.M,
                    stream);
    });
  } else {
    launch<AnyShape>(name, norm_gradient_kernel<Element, false, kCenters, AnyShape>, params,
                     params.M, stream);
  }
  return slices;
}

}  // namespace

bool is_regular(const Rows& rows, std::initializer_list<MatrixTensor> others) {
  return rows.d % 8 == 0 && lies_well(rows.x) && lies_well(rows.weight) && lies_well(rows.bias) &&
         std::all_of(others.begin(), others.end(),
                     [](const MatrixTensor& other) { return lies_well(other); });
}

int most_slices(std::int64_t M, int d) { return std::max(slices_beside(M, d), slices_apart(M)); }

template <class Element>
void launch_normalize(const char* name, const NormalizeParams& params, void* stream) {
  params.centers ? normalize<Element, true>(name, params, stream)
                 : normalize<Element, false>(name, params, stream);
}

template <class Element>
void launch_gradient(const char* name, const GradientParams& params, void* stream) {
  const bool sums = (params.d_weight.data != nullptr || params.d_bias.data != nullptr) &&
                    params.dn.data != nullptr && params.M > 0;
  int slices = 0;
  if (params.M > 0 && params.d > 0) {
    slices = params.centers ? differentiate<Element, true>(name, params, sums, stream)
                            : differentiate<Element, false>(name, params, sums, stream);
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

#define TANDEM_INSTANCES(Element)                                                      \
  template void launch_normalize<Element>(const char*, const NormalizeParams&, void*); \
  template void launch_gradient<Element>(const char*, const GradientParams&, void*);

TANDEM_INSTANCES(__nv_bfloat16)
#ifndef TANDEM_CUDA_DEV
TANDEM_INSTANCES(__half)
#endif

}  // namespace tandem::cuda::row_norm
