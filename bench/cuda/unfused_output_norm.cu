// The layer norm and the RMS norm behind gated_output's sum, unfused: a CTA per row that holds it
// in registers, each thread one or two vectors of eight elements. Backwards a CTA takes a slice of
// the rows one after the other, and keeps sums for the gradients of weight and biases, which a
// second kernel adds up.
#include "bench/cuda/unfused_output_norm.h"

#include <algorithm>
#include <cstdint>
#include <string>

#include "bench/cuda/unfused_rows.cuh"

namespace tandem::bench {
namespace {

using namespace rows;

constexpr int kMostVectors = 2;  // of a thread
constexpr int kSumWays = 8;      // threads that share a column
constexpr int kSums = 3;         // of weight, norm's bias, bias

template <typename Element, int kVectors, bool kCentred>
__global__ void __launch_bounds__(kMostThreads)
    norm_kernel(NormedSum rows, MatrixTensor out, float* kept_mean, float* kept_rstd) {
  const std::int64_t row = blockIdx.x;
  Values x[kVectors] = {};
  float total = 0.0f;
#pragma unroll
  for (int v = 0; v < kVectors; ++v) {
    if (column_of(v) >= rows.d) continue;
    x[v].load(address<Element>(rows.sum, row, column_of(v)));
    for (const float value : x[v].at) total += value;
  }
  const float mean = kCentred ? block_sum(total) / rows.d : 0.0f;
  float squares = 0.0f;
#pragma unroll
  for (int v = 0; v < kVectors; ++v) {
    if (column_of(v) >= rows.d) continue;
    for (float& value : x[v].at) {
      value -= mean;
      squares += value * value;
    }
  }
  const float rstd = 1.0f / sqrtf(block_sum(squares) / rows.d + static_cast<float>(rows.eps));
#pragma unroll
  for (int v = 0; v < kVectors; ++v) {
    if (column_of(v) >= rows.d) continue;
    const Values weight = weights<Element>(rows.weight, column_of(v), 1.0f);
    const Values bias = weights<Element>(rows.bias, column_of(v), 0.0f);
    for (int i = 0; i < kVector; ++i) {
      x[v].at[i] = x[v].at[i] * rstd * weight.at[i] + bias.at[i];
    }
    x[v].store(address<Element>(out, row, column_of(v)));
  }
  if (threadIdx.x != 0) return;
  if (kept_mean != nullptr) kept_mean[row] = mean;
  if (kept_rstd != nullptr) kept_rstd[row] = rstd;
}

template <typename Element, int kVectors, bool kCentred>
__global__ void __launch_bounds__(kMostThreads)
    norm_backward_kernel(NormedSum rows, NormedSumGradients to, float* sums) {
  const std::int64_t slices = gridDim.x, slice = blockIdx.x;
  const std::int64_t begin = rows.M * slice / slices, end = rows.M * (slice + 1) / slices;
  const bool wants_rows = to.d_residual.data != nullptr || to.d_bias.data != nullptr;
  Values d_weight[kVectors] = {}, d_norm_bias[kVectors] = {}, d_bias[kVectors] = {};
  for (std::int64_t row = begin; row < end; ++row) {
    const float mean = kCentred ? to.mean[row] : 0.0f, rstd = to.rstd[row];
    Values m[kVectors] = {}, g[kVectors] = {};
    float along[2] = {};  // <g, m>, and the sum of g
#pragma unroll
    for (int v = 0; v < kVectors; ++v) {
      if (column_of(v) >= rows.d || to.d_out.data == nullptr) continue;
      m[v].load(address<Element>(rows.sum, row, column_of(v)));
      g[v].load(address<Element>(to.d_out, row, column_of(v)));
      const Values weight = weights<Element>(rows.weight, column_of(v), 1.0f);
      for (int i = 0; i < kVector; ++i) {
        m[v].at[i] = (m[v].at[i] - mean) * rstd;
        d_weight[v].at[i] += g[v].at[i] * m[v].at[i];
        d_norm_bias[v].at[i] += g[v].at[i];
        g[v].at[i] *= weight.at[i];
        along[0] += g[v].at[i] * m[v].at[i];
        along[1] += g[v].at[i];
      }
    }
    if (!wants_rows) continue;
    if constexpr (kCentred) {
      block_sums(along);
    } else {
      along[0] = block_sum(along[0]);
      along[1] = 0.0f;
    }
#pragma unroll
    for (int v = 0; v < kVectors; ++v) {
      if (column_of(v) >= rows.d) continue;
      Values d_sum = {};
      if (to.d_sum.data != nullptr) {
        d_sum.load(address<Element>(to.d_sum, row, column_of(v)));
      }
      for (int i = 0; i < kVector; ++i) {
        const float inner = g[v].at[i] - m[v].at[i] * (along[0] / rows.d) - along[1] / rows.d;
        d_sum.at[i] += rstd * inner;
        d_bias[v].at[i] += d_sum.at[i];
      }
      if (to.d_residual.data != nullptr) {
        d_sum.store(address<Element>(to.d_residual, row, column_of(v)));
      }
    }
  }
  const std::int64_t stride = slices * rows.d;  // from one output's sums to the next one's
#pragma unroll
  for (int v = 0; v < kVectors; ++v) {
    if (column_of(v) >= rows.d) continue;
    float* const at = sums + slice * rows.d + column_of(v);
    for (int i = 0; i < kVector; ++i) {
      if (to.d_weight.data != nullptr) at[i] = d_weight[v].at[i];
      if (to.d_norm_bias.data != nullptr) at[stride + i] = d_norm_bias[v].at[i];
      if (to.d_bias.data != nullptr) at[2 * stride + i] = d_bias[v].at[i];
    }
  }
}

int vectors_of(const NormedSum& rows) {
  return rows.d / kVector <= kMostThreads ? 1 : kMostVectors;
}
int threads_of(const NormedSum& rows) {
  return ((rows.d / kVector - 1) / vectors_of(rows) / kWarp + 1) * kWarp;
}

/// As many CTAs of a backward as are at once on an H200, of narrow rows more.
int slices_of(const NormedSum& rows) {
  const int together = 264 * std::clamp(kMostThreads / threads_of(rows), 1, 4);
  return static_cast<int>(std::min<std::int64_t>(rows.M, together));
}

/// Calls body with Element, vectors and whether the norm is centred, and the number of threads.
template <class Body>
void with_shape(const NormedSum& rows, const Body& body) {
  with_types(rows.dtype, rows.dtype, [&](auto element, auto) {
    const auto launch = [&]<int kVectors>() {
      rows.norm == OutputNorm::kLayerNorm
          ? body.template operator()<decltype(element), kVectors, true>(threads_of(rows))
          : body.template operator()<decltype(element), kVectors, false>(threads_of(rows));
    };
    vectors_of(rows) == 1 ? launch.template operator()<1>()
                          : launch.template operator()<kMostVectors>();
  });
}

}  // namespace

void check_norm(const char* name, const NormedSum& rows) {
  check_matrix(name, rows.sum, rows.dtype, rows.d);
  check_matrix(name, {const_cast<void*>(rows.weight.data), rows.d}, rows.weight.dtype, rows.d);
  check_matrix(name, {const_cast<void*>(rows.bias.data), rows.d}, rows.bias.dtype, rows.d);
  if (rows.d > kMostVectors * kMostThreads * kVector) {
    throw Unsupported("[" + std::string(name) + "] d must be at most 8192");
  }
}

void normalize(const NormedSum& rows, const MatrixTensor& out, float* mean, float* rstd,
               cudaStream_t stream) {
  if (rows.M == 0) return;
  with_shape(rows, [&]<typename Element, int kVectors, bool kCentred>(int threads) {
    norm_kernel<Element, kVectors, kCentred>
        <<<static_cast<unsigned>(rows.M), threads, 0, stream>>>(rows, out, mean, rstd);
  });
}

void normalize_backward(const NormedSum& rows, const NormedSumGradients& gradients, float* sums,
                        cudaStream_t stream) {
  const int slices = slices_of(rows);
  if (slices > 0) {
    with_shape(rows, [&]<typename Element, int kVectors, bool kCentred>(int threads) {
      norm_backward_kernel<Element, kVectors, kCentred>
          <<<slices, threads, 0, stream>>>(rows, gradients, sums);
    });
  }
  const float* from = sums;
  for (const WeightVectorGradient& to :
       {gradients.d_weight, gradients.d_norm_bias, gradients.d_bias}) {
    if (to.data != nullptr) {
      with_types(rows.dtype, to.dtype, [&]<class Element, class Out>(Element, Out) {
        sum_many_slices<kSumWays>(from, slices, rows.d, static_cast<Out*>(to.data),
                                  gradients.accumulate, stream);
      });
    }
    from += std::int64_t{slices} * rows.d;
  }
}

std::size_t output_norm_sums_bytes(const NormedSum& rows) {
  return static_cast<std::size_t>(kSums) * slices_of(rows) * rows.d * sizeof(float);
}

}  // namespace tandem::bench
