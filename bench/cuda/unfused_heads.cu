// Heads' norm and rotation, unfused: one kernel for both, in which lanes side by side share a head,
// eight columns each, and a pair's other half comes by shuffle. Backwards a CTA takes a slice of
// the rows, and keeps sums for the gradient by the norm's weight, which a second kernel adds up.
#include "bench/cuda/unfused_heads.h"

#include <algorithm>
#include <cstdint>
#include <string>

#include "bench/cuda/unfused_projection.cuh"

namespace tandem::bench {
namespace {

using namespace projection;

constexpr int kMostSlices = 528;  // four CTAs per multiprocessor of an H200
constexpr int kSumWays = 8;       // threads that share a column

__device__ std::int64_t position_of(const Rope& rope, std::int64_t row) {
  std::int64_t position = row;
  if (rope.row_positions != nullptr) {
    position = rope.row_positions[row];
  } else if (rope.cu_seqlens != nullptr) {
    std::int64_t low = 0, high = rope.N + 1;
    while (low < high) {
      const std::int64_t middle = (low + high) / 2;
      rope.cu_seqlens[middle] <= row ? low = middle + 1 : high = middle;
    }
    if (low > 0) position = row - rope.cu_seqlens[low - 1];
  } else if (rope.length > 0) {
    position = row % rope.length;
  }
  return min(max(position, std::int64_t{0}), rope.positions - 1);
}

template <typename Table>
__device__ const Table* row_of(const MatrixTensor& table, std::int64_t position) {
  return static_cast<const Table*>(table.data) + position * table.row_stride;
}

/// Turns a lane's eight columns from `column` of their head on, or back. A whole warp.
template <typename Table>
__device__ void turn(const Rope& rope, std::int64_t row, bool inside, int column, bool back,
                     Values& values) {
  const int apart = rope.width / 2;
  const auto lane = static_cast<int>((threadIdx.y * blockDim.x + threadIdx.x) % kWarp);
  const bool is_first = column < apart;
  const bool turns = inside && column < rope.width;
  const std::int64_t position = turns ? position_of(rope, row) : 0;
  const Table* const cos = row_of<Table>(rope.cos, position);
  const Table* const sin = row_of<Table>(rope.sin, position);
  const float sign = back ? -1.0f : 1.0f;
  if (rope.interleaved) {
    for (int i = 0; turns && i < kVector; i += 2) {
      if (column + i >= rope.width) continue;
      const int j = (column + i) / 2;
      const float c = static_cast<float>(cos[j]), s = sign * static_cast<float>(sin[j]);
      const float a = values.at[i], b = values.at[i + 1];
      values.at[i] = a * c - b * s;
      values.at[i + 1] = b * c + a * s;
    }
    return;
  }
  Values c = {}, s = {};
  if (turns) {
    c.load(cos + (is_first ? column : column - apart));
    s.load(sin + (is_first ? column : column - apart));
  }
  const int other = (lane + (is_first ? apart : -apart) / kVector) & (kWarp - 1);
  for (int i = 0; i < kVector; ++i) {
    const float partner = __shfl_sync(kWholeWarp, values.at[i], other);
    if (!turns) continue;
    values.at[i] = values.at[i] * c.at[i] + (is_first ? -sign : sign) * partner * s.at[i];
  }
}

template <typename Element>
__device__ void turn(const HeadRows& rows, std::int64_t row, bool inside, int column, bool back,
                     Values& values) {
  if (!rows.finish.rotates) return;
  if (rows.rope.dtype == DType::kFloat32) {
    turn<float>(rows.rope, row, inside, column, back, values);
  } else {
    turn<Element>(rows.rope, row, inside, column, back, values);
  }
}

struct NormWeight {
  const void* data;
  DType dtype;
};
template <typename Element>
__device__ Values norm_weights(const HeadRows& rows, bool inside, int column) {
  const NormWeight weight{inside ? rows.finish.norm_weight : nullptr,
                          rows.finish.norm_weight_dtype};
  return weights<Element>(weight, column, 1.0f);
}

template <typename Element, typename Out>
__global__ void __launch_bounds__(kThreads)
    finish_kernel(HeadRows rows, int lanes, MatrixTensor out) {
  const HeadPart part(rows.M, rows.columns, rows.head_width, lanes);
  const int column = part.lane * kVector;
  Values z = {};
  if (part.inside) z.load(address<Out>(out, part.row, part.column));
  if (rows.finish.norm_weight != nullptr) {
    if (part.inside && rows.finish.pre_norm.data != nullptr) {
      z.store(address<Element>(rows.finish.pre_norm, part.row, part.column));
    }
    const float mean = head_sum(z, z, lanes) / rows.head_width;
    const float rstd = 1.0f / sqrtf(mean + static_cast<float>(rows.finish.eps));
    if (part.inside && part.lane == 0 && rows.finish.rstd.data != nullptr) {
      *address<float>(rows.finish.rstd, part.row, part.head) = rstd;
    }
    const Values weight = norm_weights<Element>(rows, part.inside, column);
    for (int i = 0; i < kVector; ++i) z.at[i] *= rstd * weight.at[i];
  }
  turn<Element>(rows, part.row, part.inside, column, false, z);
  if (part.inside) z.store(address<Out>(out, part.row, part.column));
}

/// A warp takes every eighth of a slice's groups of heads that it has lanes for.
template <typename Element, typename Out>
__global__ void __launch_bounds__(kThreads)
    differentiate_kernel(HeadRows rows, int lanes, MatrixTensor d_out, MatrixTensor dz,
                         float* sums) {
  constexpr int kWarps = kThreads / kWarp;
  alignas(16) __shared__ float shared[kWarps][kWarp][kVector];
  const std::int64_t slices = gridDim.x, slice = blockIdx.x;
  const std::int64_t begin = rows.M * slice / slices, end = rows.M * (slice + 1) / slices;
  const int warp = threadIdx.x / kWarp, lane = threadIdx.x % kWarp, column = lane % lanes * kVector;
  const int at_once = kWarp / lanes, heads = rows.columns / rows.head_width;
  const int groups = (heads + at_once - 1) / at_once;
  const bool normalizes = rows.finish.norm_weight != nullptr;
  const Values weight = norm_weights<Element>(rows, column < rows.head_width, column);
  Values sum = {};
  const auto items = static_cast<unsigned>((end - begin) * groups);
  for (unsigned item = warp; item < items; item += kWarps) {
    const std::int64_t row = begin + item / groups;
    const int head = static_cast<int>(item % groups) * at_once + lane / lanes;
    const bool inside = head < heads && column < rows.head_width;
    const int at = head * rows.head_width + column;
    Values d = {}, m = {};
    float rstd = 0.0f;
    if (inside) d.load(address<Out>(d_out, row, at));
    if (inside && normalizes) {
      m.load(address<Element>(rows.finish.pre_norm, row, at));
      rstd = *address<float>(rows.finish.rstd, row, head);
    }
    turn<Element>(rows, row, inside, column, true, d);
    if (normalizes) {
      for (int i = 0; i < kVector; ++i) {
        m.at[i] *= rstd;
        sum.at[i] += d.at[i] * m.at[i];
        d.at[i] *= weight.at[i];
      }
      const float mean = head_sum(d, m, lanes) / rows.head_width;
      for (int i = 0; i < kVector; ++i) d.at[i] = rstd * (d.at[i] - m.at[i] * mean);
    }
    if (inside) d.store(address<Element>(dz, row, at));
  }
  if (sums == nullptr) return;
  sum.store(shared[warp][lane]);
  __syncthreads();
  const int mine = threadIdx.x;
  if (mine >= rows.head_width) return;
  float total = 0.0f;
  for (int from = 0; from < kWarps; ++from) {
    for (int first = 0; first < kWarp; first += lanes) {
      total += shared[from][first + mine / kVector][mine % kVector];
    }
  }
  sums[slice * rows.head_width + mine] = total;
}

int slices_of(const HeadRows& rows) {
  return static_cast<int>(std::min<std::int64_t>(rows.M, kMostSlices));
}

}  // namespace

void check_heads(const char* name, const HeadRows& rows) {
  check_matrix(name, rows.finish.pre_norm, rows.dtype, rows.columns);
  check_matrix(name, {const_cast<void*>(rows.finish.norm_weight), rows.head_width},
               rows.finish.norm_weight_dtype, rows.head_width);
  if (!rows.finish.rotates || rows.rope.interleaved) return;
  check_matrix(name, rows.rope.cos, rows.rope.dtype, rows.rope.width / 2);
  check_matrix(name, rows.rope.sin, rows.rope.dtype, rows.rope.width / 2);
}

void finish_heads(const HeadRows& rows, const MatrixTensor& out, DType out_dtype,
                  cudaStream_t stream) {
  if (rows.M == 0 || rows.columns == 0) return;
  with_types(rows.dtype, out_dtype, [&]<class Element, class Out>(Element, Out) {
    const int lanes = head_lanes(rows.head_width);
    const Threads threads(rows.M, rows.columns / rows.head_width * lanes);
    finish_kernel<Element, Out><<<threads.grid, threads.block, 0, stream>>>(rows, lanes, out);
  });
}

void differentiate_heads(const HeadRows& rows, const MatrixTensor& d_out, DType out_dtype,
                         const MatrixTensor& dz, const NormWeightGradient& d_weight, float* sums,
                         cudaStream_t stream) {
  const bool has_rows = rows.M > 0 && rows.columns > 0 && d_out.data != nullptr;
  const int slices = has_rows ? slices_of(rows) : 0;
  if (has_rows) {
    with_types(rows.dtype, out_dtype, [&]<class Element, class Out>(Element, Out) {
      differentiate_kernel<Element, Out><<<slices, kThreads, 0, stream>>>(
          rows, head_lanes(rows.head_width), d_out, dz, d_weight.data ? sums : nullptr);
    });
  }
  if (d_weight.data == nullptr) return;
  with_types(rows.dtype, d_weight.dtype, [&]<class Element, class Out>(Element, Out) {
    sum_many_slices<kSumWays>(sums, slices, rows.head_width, static_cast<Out*>(d_weight.data),
                              d_weight.accumulate, stream);
  });
}

std::size_t head_sums_bytes(const HeadRows& rows) {
  return static_cast<std::size_t>(slices_of(rows)) * rows.head_width * sizeof(float);
}

}  // namespace tandem::bench
