// The kernels of gated_output's gate: a CTA per row, or for sums over rows per 256 columns of a
// slice of them. Bound by memory: floor o, the gate and what is made of them once.
//
// A row is cut into pieces of eight columns, or of one where rows begin anywhere or groups are no
// whole eights. The sums of a group norm are made of those of its pieces, in one order.
#include "cuda/gated_output/gate_rows.h"

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <algorithm>
#include <initializer_list>

#include "cuda/gated_output/gate.cuh"
#include "cuda/gemm/convert.h"
#include "cuda/parts/eight.cuh"
#include "cuda/parts/stream_order.cuh"
#include "cuda/parts/warp_sums.cuh"
#include "cuda/row_norm/row_norm.h"
#include "cuda/runtime/launch.h"
#include "cuda/runtime/plan.h"

namespace tandem::cuda::gated_output {
namespace {

constexpr int kThreads = 128;
constexpr int kSumWarps = 8;  // where a CTA sums over rows
constexpr int kBatch = 4;     // pieces that a thread has on their way

/// Loads neighbouring elements: one, or eight at a multiple of 16 bytes.
template <class Stored, int kPiece>
__device__ void load_piece(const Stored* from, float (&values)[kPiece]) {
  if constexpr (kPiece == 8) {
    unpack(*reinterpret_cast<const Words<Stored>*>(from), values);
  } else {
    values[0] = static_cast<float>(*from);
  }
}

template <class Element, int kPiece>
__device__ void load_piece(const MatrixTensor& matrix, std::int64_t row, int column,
                           float (&values)[kPiece]) {
  load_piece(static_cast<const Element*>(matrix.data) + row * matrix.row_stride + column, values);
}

template <class Element, int kPiece>
__device__ void store_piece(const MatrixTensor& matrix, std::int64_t row, int column,
                            const float (&values)[kPiece]) {
  Element* to = static_cast<Element*>(matrix.data) + row * matrix.row_stride + column;
  if constexpr (kPiece == 8) {
    store_eight(to, 8, values);
  } else {
    *to = static_cast<Element>(values[0]);
  }
}

/// Loads the group norm's weights of a piece.
template <class Element, int kPiece>
__device__ void load_weights(const GatedRows& rows, int column, float (&weights)[kPiece]) {
  const int at = rows.group_weight_repeats ? column % rows.group_width : column;
  const WeightVector& from = rows.group_norm_weight;
  if (from.dtype == DType::kFloat32) {
    load_piece(static_cast<const float*>(from.data) + at, weights);
  } else {
    load_piece(static_cast<const Element*>(from.data) + at, weights);
  }
}

/// Calls pass(column, more pieces of the row...) for the pieces of a row that a thread takes, whose
/// elements of up to three matrices are loaded some at a time; null matrices are not.
template <class Element, int kPiece, int kMatrices, class Pass>
__device__ void for_pieces(const MatrixTensor (&matrices)[kMatrices], std::int64_t row, int d,
                           Pass pass) {
  for (int first = kPiece * static_cast<int>(threadIdx.x); first < d;
       first += kPiece * kThreads * kBatch) {
    float values[kBatch][kMatrices][kPiece];
#pragma unroll
    for (int i = 0; i < kBatch; ++i) {
      const int column = first + i * kPiece * kThreads;
#pragma unroll
      for (int j = 0; j < kMatrices; ++j) {
        if (column < d && matrices[j].data != nullptr) {
          load_piece<Element>(matrices[j], row, column, values[i][j]);
        }
      }
    }
#pragma unroll
    for (int i = 0; i < kBatch; ++i) {
      const int column = first + i * kPiece * kThreads;
      if (column < d) pass(column, values[i]);
    }
  }
}

/// Sums of a row's groups, in shared memory: first of their pieces.
template <int kPiece>
struct GroupSums {
  float* pieces;  // [d / kPiece]
  float* groups;  // [d / width]

  __device__ GroupSums(float* shared, int d) : pieces(shared), groups(shared + d / kPiece) {}

  /// Turns each group's sum into finish(group, sum). All threads, after all pieces are there.
  template <class Finish>
  __device__ void make(int d, int width, Finish finish) {
    __syncthreads();
    const int per_group = width / kPiece;
    int lanes = 1;  // per group
    while (lanes < per_group && lanes < 32) lanes *= 2;
    const int lane = threadIdx.x % lanes;
    const int at_once = kThreads / lanes;
    const int count = d / width;
    for (int first = 0; first < count; first += at_once) {
      const int group = first + static_cast<int>(threadIdx.x) / lanes;
      float sum = 0.0f;
      for (int i = lane; i < per_group && group < count; i += lanes) {
        sum += pieces[group * per_group + i];
      }
      for (int distance = lanes / 2; distance > 0; distance /= 2) {
        sum += __shfl_xor_sync(0xFFFFFFFFu, sum, distance);
      }
      if (lane == 0 && group < count) groups[group] = finish(group, sum);
    }
    __syncthreads();
  }
};
template <int kPiece>
std::size_t group_sums_bytes(int d, int width) {
  return width > 0 ? sizeof(float) * (d / kPiece + d / width) : 0;
}

template <class Element, int kPiece>
__global__ __launch_bounds__(kThreads) void gate_kernel(const __grid_constant__ GateParams params) {
  extern __shared__ float shared[];
  follow_stream();
  const GatedRows& rows = params.rows;
  const std::int64_t row = params.first + blockIdx.x;
  const int width = rows.group_width;
  const bool gates = rows.gate.data != nullptr;
  const MatrixTensor inputs[2] = {rows.o, rows.gate};
  GroupSums<kPiece> sums(shared, params.d);
  const float* rstds = sums.groups;
  if (params.given_rstd.data != nullptr) {
    rstds = static_cast<const float*>(params.given_rstd.data) + row * params.given_rstd.row_stride;
  } else if (width > 0) {
    for_pieces<Element, kPiece>(inputs, row, params.d, [&](int column, auto& in) {
      float squares = 0.0f;
#pragma unroll
      for (int j = 0; j < kPiece; ++j) {
        float y = in[0][j];
        if (rows.norm_behind_gate) y *= apply_gate(rows.gate_activation, in[1][j]).value;
        squares = fmaf(y, y, squares);
      }
      sums.pieces[column / kPiece] = squares;
    });
    sums.make(params.d, width, [&](int group, float squares) {
      const float rstd = rsqrtf(squares / static_cast<float>(width) + params.group_eps);
      if (params.group_rstd.data != nullptr) {
        static_cast<float*>(params.group_rstd.data)[row * params.group_rstd.row_stride + group] =
            rstd;
      }
      return rstd;
    });
  }
  if (params.gated.data == nullptr) return;
  for_pieces<Element, kPiece>(inputs, row, params.d, [&](int column, auto& in) {
    float a[kPiece], weights[kPiece];
    float rstd = 1.0f;
    if (width > 0) {
      rstd = rstds[column / width];
      load_weights<Element>(rows, column, weights);
    }
#pragma unroll
    for (int j = 0; j < kPiece; ++j) {
      a[j] = in[0][j];
      if (width > 0) a[j] *= rstd * weights[j];
      if (gates) a[j] *= apply_gate(rows.gate_activation, in[1][j]).value;
    }
    store_piece<Element>(params.gated, row, column, a);
  });
}

template <class Element, int kPiece>
__global__ __launch_bounds__(kThreads) void gate_gradient_kernel(
    const __grid_constant__ GateGradientParams params) {
  extern __shared__ float shared[];
  follow_stream();
  const GatedRows& rows = params.rows;
  const std::int64_t row = blockIdx.x;
  const int width = rows.group_width;
  const bool gates = rows.gate.data != nullptr, behind = rows.norm_behind_gate;
  const MatrixTensor inputs[3] = {rows.o, rows.gate, params.d_gated};
  const float* rstds =
      static_cast<const float*>(params.group_rstd.data) + row * params.group_rstd.row_stride;
  GroupSums<kPiece> means(shared, params.d);
  // y is what is normalised, dn what its norm's result has of the gradient before its weight.
  const auto gate_of = [&](float g) {
    return gates ? apply_gate(rows.gate_activation, g) : Gate{1.0f, 0.0f};
  };
  if (width > 0) {
    for_pieces<Element, kPiece>(inputs, row, params.d, [&](int column, auto& in) {
      const float rstd = rstds[column / width];
      float weights[kPiece], dot = 0.0f;
      load_weights<Element>(rows, column, weights);
#pragma unroll
      for (int j = 0; j < kPiece; ++j) {
        const float f = gate_of(in[1][j]).value;
        const float y = behind ? in[0][j] * f : in[0][j];
        const float dn = behind ? in[2][j] : in[2][j] * f;
        dot = fmaf(dn * weights[j], y * rstd, dot);
      }
      means.pieces[column / kPiece] = dot;
    });
    means.make(params.d, width, [&](int, float sum) { return sum / static_cast<float>(width); });
  }
  for_pieces<Element, kPiece>(inputs, row, params.d, [&](int column, auto& in) {
    float weights[kPiece], d_o[kPiece], d_gate[kPiece];
    float rstd = 1.0f, mean = 0.0f;
    if (width > 0) {
      rstd = rstds[column / width];
      mean = means.groups[column / width];
      load_weights<Element>(rows, column, weights);
    }
#pragma unroll
    for (int j = 0; j < kPiece; ++j) {
      const float o = in[0][j], d_a = in[2][j];
      const Gate f = gate_of(in[1][j]);
      if (width == 0) {
        d_o[j] = d_a * f.value;
        d_gate[j] = d_a * o * f.slope;
        continue;
      }
      const float m = (behind ? o * f.value : o) * rstd;
      const float dn = behind ? d_a : d_a * f.value;
      const float dy = rstd * (dn * weights[j] - m * mean);
      d_o[j] = behind ? dy * f.value : dy;
      d_gate[j] = (behind ? dy * o : d_a * m * weights[j]) * f.slope;
    }
    if (params.d_o.data != nullptr) store_piece<Element>(params.d_o, row, column, d_o);
    if (params.d_gate.data != nullptr) store_piece<Element>(params.d_gate, row, column, d_gate);
  });
}

/// A CTA per 32 pieces of columns and slice of rows; its warps take every eighth row.
template <class Element, int kPiece>
__global__ __launch_bounds__(32 * kSumWarps) void group_weight_gradient_kernel(
    const __grid_constant__ GroupWeightGradientParams params) {
  constexpr int kColumns = 32 * kPiece;
  __shared__ float sums[kSumWarps][kColumns];
  follow_stream();
  const GatedRows& rows = params.rows;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int column = static_cast<int>(blockIdx.x) * kColumns + kPiece * lane;
  const std::int64_t begin = params.M * blockIdx.y / gridDim.y;
  const std::int64_t end = params.M * (blockIdx.y + 1) / gridDim.y;
  float sum[kPiece] = {};
  if (column < params.d) {
#pragma unroll 4
    for (std::int64_t row = begin + warp; row < end; row += kSumWarps) {
      float o[kPiece], g[kPiece], d_a[kPiece];
      load_piece<Element>(rows.o, row, column, o);
      load_piece<Element>(params.d_gated, row, column, d_a);
      if (rows.gate.data != nullptr) load_piece<Element>(rows.gate, row, column, g);
      const float rstd = static_cast<const float*>(
          params.group_rstd.data)[row * params.group_rstd.row_stride + column / rows.group_width];
#pragma unroll
      for (int j = 0; j < kPiece; ++j) {  // before or behind the gate, o's f is in it once
        const float f =
            rows.gate.data != nullptr ? apply_gate(rows.gate_activation, g[j]).value : 1.0f;
        sum[j] = fmaf(d_a[j] * f, o[j] * rstd, sum[j]);
      }
    }
  }
#pragma unroll
  for (int j = 0; j < kPiece; ++j) sums[warp][kPiece * lane + j] = sum[j];
  __syncthreads();
  const int mine = static_cast<int>(blockIdx.x * kColumns + threadIdx.x);
  if (static_cast<int>(threadIdx.x) >= kColumns || mine >= params.d) return;
  float total = 0.0f;
#pragma unroll
  for (int i = 0; i < kSumWarps; ++i) total += sums[i][threadIdx.x];
  params.partial_sums[std::int64_t{blockIdx.y} * params.d + mine] = total;
}

/// Whether rows consist of whole pieces of eight columns at multiples of 16 bytes.
bool has_eights(const GatedRows& rows, int d, std::initializer_list<MatrixTensor> others) {
  const auto lies_well = [](const MatrixTensor& matrix) {
    return reinterpret_cast<std::uintptr_t>(matrix.data) % 16 == 0 && matrix.row_stride % 8 == 0;
  };
  return d % 8 == 0 && rows.group_width % 8 == 0 && lies_well(rows.o) && lies_well(rows.gate) &&
         lies_well({const_cast<void*>(rows.group_norm_weight.data), 0}) &&
         std::all_of(others.begin(), others.end(), lies_well);
}

template <class Params>
void launch_rows(const char* name, void (*kernel)(Params), const Params& params, std::int64_t count,
                 std::size_t shared_bytes, void* stream) {
  if (count == 0 || params.d == 0) return;
  launch_kernel(
      name, kernel,
      {.blocks = static_cast<unsigned>(count), .threads = kThreads, .shared_bytes = shared_bytes},
      static_cast<cudaStream_t>(stream), params);
}

}  // namespace

template <class Element>
void launch_gate(const char* name, const GateParams& params, void* stream) {
  const std::int64_t count = params.end - params.first;
  const int width = params.rows.group_width;
  if (has_eights(params.rows, params.d, {params.gated})) {
    launch_rows(name, gate_kernel<Element, 8>, params, count, group_sums_bytes<8>(params.d, width),
                stream);
  } else {
    launch_rows(name, gate_kernel<Element, 1>, params, count, group_sums_bytes<1>(params.d, width),
                stream);
  }
}

template <class Element>
void launch_gate_gradient(const char* name, const GateGradientParams& params, void* stream) {
  const int width = params.rows.group_width;
  if (has_eights(params.rows, params.d, {params.d_gated, params.d_o, params.d_gate})) {
    launch_rows(name, gate_gradient_kernel<Element, 8>, params, params.M,
                group_sums_bytes<8>(params.d, width), stream);
  } else {
    launch_rows(name, gate_gradient_kernel<Element, 1>, params, params.M,
                group_sums_bytes<1>(params.d, width), stream);
  }
}

template <class Element>
void launch_group_weight_gradient(const char* name, const GroupWeightGradientParams& params,
                                  void* stream) {
  const int slices = params.M > 0 ? row_norm::weight_slices(params.M) : 0;
  const bool eights = has_eights(params.rows, params.d, {params.d_gated});
  if (slices > 0) {
    launch_kernel(name,
                  eights ? group_weight_gradient_kernel<Element, 8>
                         : group_weight_gradient_kernel<Element, 1>,
                  {.blocks = static_cast<unsigned>(ceil_div(params.d, eights ? 256 : 32)),
                   .blocks_y = static_cast<unsigned>(slices),
                   .threads = 32 * kSumWarps},
                  static_cast<cudaStream_t>(stream), params);
  }
  // Where groups share their weights, each of them counts as a slice.
  const int columns = params.rows.group_weight_repeats ? params.rows.group_width : params.d;
  gemm::SumSlicesParams sum;
  sum.partial_sums = params.partial_sums;
  sum.slices = slices * (params.d / columns);
  sum.rows = 1;
  sum.columns = columns;
  sum.result = {params.d_weight.data, columns};
  sum.fp32 = params.d_weight.dtype == DType::kFloat32;
  sum.accumulate = params.accumulate;
  gemm::launch_sum_slices<Element>(name, sum, stream);
}

#define TANDEM_INSTANCES(Element)                                                             \
  template void launch_gate<Element>(const char*, const GateParams&, void*);                  \
  template void launch_gate_gradient<Element>(const char*, const GateGradientParams&, void*); \
  template void launch_group_weight_gradient<Element>(const char*,                            \
                                                      const GroupWeightGradientParams&, void*);

TANDEM_INSTANCES(__nv_bfloat16)
#ifndef TANDEM_CUDA_DEV
TANDEM_INSTANCES(__half)
#endif

}  // namespace tandem::cuda::gated_output
