// The RMS norm, unfused: a CTA per row that holds it in registers, each thread one or two vectors
// of eight elements. Backwards a CTA takes a slice of the rows one after the other, and keeps sums
// for the weight's gradient, which a second kernel adds up.
#include "bench/cuda/unfused_rms_norm.h"

#include <algorithm>
#include <cstdint>
#include <string>

#include "bench/cuda/unfused_rows.cuh"

namespace tandem::bench {
namespace {

using namespace rows;

constexpr int kMostVectors = 2;   // of a thread: more do not fit into registers backwards
constexpr int kMostSlices = 264;  // two CTAs per multiprocessor of an H200

template <typename Element, typename Weight, int kVectors>
__global__ void __launch_bounds__(kMostThreads)
    normalize_kernel(NormedRows rows, MatrixTensor n, float* kept_rstd) {
  const std::int64_t row = blockIdx.x;
  Values x[kVectors];
  float squares = 0.0f;
  for (int v = 0; v < kVectors; ++v) {
    if (column_of(v) >= rows.d) continue;
    x[v].load(address<Element>(rows.x, row, column_of(v)));
    for (const float value : x[v].at) squares += value * value;
  }
  const float rstd =
      rows.norm.rstd != nullptr
          ? rows.norm.rstd[row]
          : 1.0f / sqrtf(block_sum(squares) / rows.d + static_cast<float>(rows.norm.eps));
  for (int v = 0; v < kVectors; ++v) {
    if (column_of(v) >= rows.d) continue;
    Values weight;
    weight.load(static_cast<const Weight*>(rows.norm.weight) + column_of(v));
    for (int i = 0; i < kVector; ++i) x[v].at[i] *= rstd * weight.at[i];
    x[v].store(address<Element>(n, row, column_of(v)));
  }
  if (kept_rstd != nullptr && threadIdx.x == 0) kept_rstd[row] = rstd;
}

template <typename Element, typename Weight, int kVectors>
__global__ void __launch_bounds__(kMostThreads)
    normalize_backward_kernel(NormedRows rows, MatrixTensor dn, MatrixTensor dx, float* sums) {
  const std::int64_t slices = gridDim.x, slice = blockIdx.x;
  const std::int64_t begin = rows.M * slice / slices, end = rows.M * (slice + 1) / slices;
  Values weight[kVectors] = {}, sum[kVectors] = {};
  for (int v = 0; v < kVectors; ++v) {
    if (column_of(v) < rows.d) {
      weight[v].load(static_cast<const Weight*>(rows.norm.weight) + column_of(v));
    }
  }
  for (std::int64_t row = begin; row < end; ++row) {
    const float rstd = rows.norm.rstd[row];
    Values m[kVectors] = {}, g[kVectors] = {};
    float along = 0.0f;
    for (int v = 0; v < kVectors; ++v) {
      if (column_of(v) >= rows.d) continue;
      m[v].load(address<Element>(rows.x, row, column_of(v)));
      g[v].load(address<Element>(dn, row, column_of(v)));
      for (int i = 0; i < kVector; ++i) {
        m[v].at[i] *= rstd;
        sum[v].at[i] += g[v].at[i] * m[v].at[i];
        g[v].at[i] *= weight[v].at[i];
        along += g[v].at[i] * m[v].at[i];
      }
    }
    if (dx.data == nullptr) continue;
    const float mean = block_sum(along) / rows.d;
    for (int v = 0; v < kVectors; ++v) {
      if (column_of(v) >= rows.d) continue;
      for (int i = 0; i < kVector; ++i) g[v].at[i] = rstd * (g[v].at[i] - m[v].at[i] * mean);
      g[v].store(address<Element>(dx, row, column_of(v)));
    }
  }
  if (sums == nullptr) return;
  for (int v = 0; v < kVectors; ++v) {
    if (column_of(v) >= rows.d) continue;
    for (int i = 0; i < kVector; ++i) sums[slice * rows.d + column_of(v) + i] = sum[v].at[i];
  }
}

constexpr int kSumWays = 8;  // threads that share a column

int slices_of(const NormedRows& rows) {
  return static_cast<int>(std::min<std::int64_t>(rows.M, kMostSlices));
}

/// Calls body(Element{}, Weight{}, vectors, threads), the number of vectors as a constant's type.
template <class Body>
void with_shape(const NormedRows& rows, const Body& body) {
  const int vectors = rows.d / kVector;
  with_types(rows.dtype, rows.norm.weight_dtype, [&](auto element, auto weight) {
    const auto launch = [&]<int kVectors>() {
      const int threads = ((vectors - 1) / kVectors / kWarp + 1) * kWarp;
      body.template operator()<decltype(element), decltype(weight), kVectors>(threads);
    };
    vectors <= kMostThreads ? launch.template operator()<1>()
                            : launch.template operator()<kMostVectors>();
  });
}

}  // namespace

void check_norm(const char* name, const NormedRows& rows) {
  check_matrix(name, rows.x, rows.dtype, rows.d);
  check_matrix(name, {const_cast<void*>(rows.norm.weight), rows.d}, rows.norm.weight_dtype, rows.d);
  if (rows.d > kMostVectors * kMostThreads * kVector) {
    throw Unsupported("[" + std::string(name) + "] d must be at most 8192");
  }
}

void normalize(const NormedRows& rows, const MatrixTensor& n, float* kept_rstd,
               cudaStream_t stream) {
  if (rows.M == 0) return;
  with_shape(rows, [&]<typename Element, typename Weight, int kVectors>(int threads) {
    normalize_kernel<Element, Weight, kVectors>
        <<<static_cast<unsigned>(rows.M), threads, 0, stream>>>(rows, n, kept_rstd);
  });
}

void normalize_backward(const NormedRows& rows, const MatrixTensor& dn, const MatrixTensor& dx,
                        const NormWeightGradient& d_weight, float* sums, cudaStream_t stream) {
  const int slices = slices_of(rows);
  if (slices > 0) {
    with_shape(rows, [&]<typename Element, typename Weight, int kVectors>(int threads) {
      normalize_backward_kernel<Element, Weight, kVectors>
          <<<slices, threads, 0, stream>>>(rows, dn, dx, d_weight.data ? sums : nullptr);
    });
  }
  if (d_weight.data == nullptr) return;
  with_types(rows.dtype, d_weight.dtype, [&]<class Element, class Out>(Element, Out) {
    sum_many_slices<kSumWays>(sums, slices, rows.d, static_cast<Out*>(d_weight.data),
                              d_weight.accumulate, stream);
  });
}

std::size_t norm_sums_bytes(const NormedRows& rows) {
  return static_cast<std::size_t>(slices_of(rows)) * rows.d * sizeof(float);
}

}  // namespace tandem::bench
