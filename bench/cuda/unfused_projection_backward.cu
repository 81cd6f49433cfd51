// projection's backward, unfused: every product, and what comes before it, a kernel of its own. Per
// segment
//
//   dz                  element-wise; none where 16-bit d_out is dz
//   dx += dz W          cuBLASLt
//   d_weight = dz^T x   cuBLASLt
//   d_bias              sums over slices of the rows, then of the slices
//
// dz is rounded to 16 bits, dx after each segment, as torch's products and kernels round them.
// Values in between are fp32.
#include <algorithm>
#include <cstdint>

#include "batched_matmul.h"
#include "bench/cuda/unfused.h"
#include "bench/cuda/unfused_projection.cuh"
#include "cuda/runtime/workspace.h"

namespace tandem::bench {
namespace {

using namespace projection;

constexpr int kSumLanes = 16, kSumRows = kThreads / kSumLanes;
constexpr int kSumColumns = kSumLanes * kVector;

/// dz = d_out, or d_out slope.
template <typename Element, typename Out>
__global__ void __launch_bounds__(kThreads)
    slope_kernel(std::int64_t M, ProjectionBackwardSegment segment, MatrixTensor dz) {
  const std::int64_t row = thread_row();
  const int column = thread_in_row() * kVector;
  if (row >= M || column >= segment.columns) return;
  Values d_out, slope;
  d_out.load(address<Out>(segment.d_out, row, column));
  if (segment.kept == ProjectionKept::kSlope) {
    slope.load(address<Out>(segment.slope, row, column));
    for (int i = 0; i < kVector; ++i) d_out.at[i] *= slope.at[i];
  }
  d_out.store(address<Element>(dz, row, column));
}

/// dz = inverse_norm (d_out - out <d_out, out>).
template <typename Element, typename Out>
__global__ void __launch_bounds__(kThreads)
    normalize_backward_kernel(std::int64_t M, ProjectionBackwardSegment segment, int lanes,
                              MatrixTensor dz) {
  const HeadPart part(M, segment.columns, segment.head_width, lanes);
  Values d_out = {}, out = {};
  if (part.inside) {
    d_out.load(address<Out>(segment.d_out, part.row, part.column));
    out.load(address<Out>(segment.out, part.row, part.column));
  }
  const float along = head_sum(d_out, out, lanes);
  if (!part.inside) return;
  const float inverse = *address<float>(segment.inverse_norm, part.row, part.head);
  for (int i = 0; i < kVector; ++i) d_out.at[i] = inverse * (d_out.at[i] - out.at[i] * along);
  d_out.store(address<Element>(dz, part.row, part.column));
}

/// Sums of a slice's rows: a block per kSumColumns columns and slice.
template <typename Element>
__global__ void __launch_bounds__(kThreads)
    column_sums_kernel(std::int64_t M, int columns, MatrixTensor matrix, float* sums) {
  alignas(16) __shared__ float shared[kSumRows][kSumColumns];
  const int lane = threadIdx.x % kSumLanes, first = threadIdx.x / kSumLanes;
  const int column = blockIdx.x * kSumColumns + lane * kVector;
  const std::int64_t slices = gridDim.y, slice = blockIdx.y;
  const std::int64_t begin = M * slice / slices, end = M * (slice + 1) / slices;
  Values sum = {};
  if (column < columns) {
#pragma unroll 4
    for (std::int64_t row = begin + first; row < end; row += kSumRows) {
      Values values;
      values.load(address<Element>(matrix, row, column));
      for (int i = 0; i < kVector; ++i) sum.at[i] += values.at[i];
    }
  }
  sum.store(&shared[first][lane * kVector]);
  __syncthreads();
  const int mine = threadIdx.x, to = blockIdx.x * kSumColumns + mine;
  if (mine >= kSumColumns || to >= columns) return;
  float total = 0.0f;
  for (int row = 0; row < kSumRows; ++row) total += shared[row][mine];
  sums[slice * columns + to] = total;
}

template <typename Out>
__global__ void __launch_bounds__(kThreads)
    sum_slices_kernel(const float* sums, int slices, int columns, Out* result, bool accumulate) {
  const int column = blockIdx.x * kThreads + threadIdx.x;
  if (column >= columns) return;
  float total = accumulate ? static_cast<float>(result[column]) : 0.0f;
  for (int slice = 0; slice < slices; ++slice)
    total += sums[std::int64_t{slice} * columns + column];
  result[column] = Out(total);
}

/// Whether dz is other than d_out as it lies.
bool makes_dz(const ProjectionBackwardSegment& segment) {
  return segment.d_out.data != nullptr &&
         (segment.kept != ProjectionKept::kNothing || segment.out_dtype == DType::kFloat32);
}

void make_dz(const ProjectionBackwardProblem& problem, const ProjectionBackwardSegment& segment,
             const MatrixTensor& dz, cudaStream_t stream) {
  with_types(problem.dtype, segment.out_dtype, [&]<class Element, class Out>(Element, Out) {
    if (segment.kept == ProjectionKept::kNormalized) {
      const int lanes = head_lanes(segment.head_width);
      const Threads threads(problem.M, segment.columns / segment.head_width * lanes);
      normalize_backward_kernel<Element, Out>
          <<<threads.grid, threads.block, 0, stream>>>(problem.M, segment, lanes, dz);
    } else {
      const Threads threads(problem.M, segment.columns / kVector);
      slope_kernel<Element, Out>
          <<<threads.grid, threads.block, 0, stream>>>(problem.M, segment, dz);
    }
  });
}

int sum_slices(std::int64_t M) {
  return static_cast<int>(std::clamp<std::int64_t>(M / 256, 1, 64));
}

void sum_columns(const ProjectionBackwardProblem& problem, const ProjectionBackwardSegment& segment,
                 const MatrixTensor& dz, float* sums, cudaStream_t stream) {
  const int slices = sum_slices(problem.M);
  with_types(problem.dtype, segment.d_bias_dtype, [&]<class Element, class Out>(Element, Out) {
    const dim3 grid((segment.columns - 1) / kSumColumns + 1, slices);
    column_sums_kernel<Element>
        <<<grid, kThreads, 0, stream>>>(problem.M, segment.columns, dz, sums);
    sum_slices_kernel<Out><<<(segment.columns - 1) / kThreads + 1, kThreads, 0, stream>>>(
        sums, slices, segment.columns, static_cast<Out*>(segment.d_bias), problem.accumulate);
  });
}

void clear(const MatrixTensor& matrix, DType dtype, std::int64_t rows, std::int64_t columns,
           cudaStream_t stream) {
  const std::size_t size = size_of(dtype);
  cuda::cuda_check(
      cudaMemset2DAsync(matrix.data, matrix.row_stride * size, 0, columns * size, rows, stream),
      kName);
}

/// What a backward keeps, of one segment at a time.
struct Intermediates {
  std::size_t dz, sums, matmul, bytes;

  explicit Intermediates(const ProjectionBackwardProblem& problem) {
    check_baseline(problem);
    check_matrix(problem.x, problem.dtype, problem.d);
    check_matrix(problem.dx, problem.dtype, problem.d);
    std::int64_t dz_columns = 0, bias_columns = 0;
    for (int i = 0; i < problem.segment_count; ++i) {
      const ProjectionBackwardSegment& segment = problem.segments[i];
      if (segment.columns == 0) continue;
      check_matrix(segment.weight, problem.dtype, problem.d);
      check_matrix(segment.d_out, segment.out_dtype, segment.columns);
      check_matrix(segment.slope, segment.out_dtype, segment.columns);
      check_matrix(segment.out, segment.out_dtype, segment.columns);
      check_matrix(segment.d_weight, segment.d_weight_dtype, problem.d);
      const std::int64_t columns = segment.columns;
      if (makes_dz(segment)) dz_columns = std::max(dz_columns, columns);
      if (segment.d_bias != nullptr) bias_columns = std::max(bias_columns, columns);
    }
    cuda::WorkspaceLayout layout;
    dz = layout.add(problem.M * dz_columns * 2);
    sums = layout.add(sum_slices(problem.M) * bias_columns * 4);
    matmul = layout.add(kMatmulWorkspaceBytes);
    bytes = layout.bytes();
  }
};

/// Adds a segment's part to dx, and writes its own gradients.
void add_segment(const ProjectionBackwardProblem& problem, const ProjectionBackwardSegment& segment,
                 bool first, const Intermediates& at, const cuda::ScratchMemory& scratch,
                 cudaStream_t stream) {
  MatrixTensor dz = segment.d_out;
  if (makes_dz(segment)) {
    dz = {scratch.at<void>(at.dz), segment.columns};
    make_dz(problem, segment, dz, stream);
  }
  const cudaDataType_t dtype = cuda_type(problem.dtype);
  void* workspace = scratch.at<void>(at.matmul);
  if (problem.dx.data != nullptr) {
    multiply({.dtype = dtype,
              .batch = 1,
              .M = problem.M,
              .N = problem.d,
              .K = segment.columns,
              .alpha = 1.0f,
              .a = {dz.data, false, dz.row_stride},
              .b = {segment.weight.data, false, segment.weight.row_stride},
              .d = problem.dx.data,
              .d_row_stride = problem.dx.row_stride,
              .accumulate = !first},
             workspace, stream);
  }
  if (segment.d_weight.data != nullptr) {
    multiply({.dtype = dtype,
              .batch = 1,
              .M = segment.columns,
              .N = problem.d,
              .K = problem.M,
              .alpha = 1.0f,
              .a = {dz.data, true, dz.row_stride},
              .b = {problem.x.data, false, problem.x.row_stride},
              .d = segment.d_weight.data,
              .d_row_stride = segment.d_weight.row_stride,
              .fp32 = segment.d_weight_dtype == DType::kFloat32,
              .accumulate = problem.accumulate},
             workspace, stream);
  }
  if (segment.d_bias != nullptr) {
    sum_columns(problem, segment, dz, scratch.at<float>(at.sums), stream);
  }
}

/// Writes the gradients of weights that nothing depends on.
void clear_segment(const ProjectionBackwardProblem& problem,
                   const ProjectionBackwardSegment& segment, cudaStream_t stream) {
  if (problem.accumulate) return;
  if (segment.d_weight.data != nullptr) {
    clear(segment.d_weight, segment.d_weight_dtype, segment.columns, problem.d, stream);
  }
  if (segment.d_bias != nullptr) {
    clear({segment.d_bias, segment.columns}, segment.d_bias_dtype, 1, segment.columns, stream);
  }
}

}  // namespace

void unfused_projection_backward(const ProjectionBackwardProblem& problem, const Context& context) {
  const Intermediates at(problem);
  const cuda::DeviceGuard guard(problem.device.index);
  const cuda::ScratchMemory scratch(kName, context, at.bytes);
  const auto stream = static_cast<cudaStream_t>(context.stream.handle);
  bool first = true;
  for (int i = 0; i < problem.segment_count; ++i) {
    const ProjectionBackwardSegment& segment = problem.segments[i];
    if (segment.columns == 0) continue;
    if (segment.d_out.data == nullptr || problem.M == 0) {
      clear_segment(problem, segment, stream);
      continue;
    }
    add_segment(problem, segment, first, at, scratch, stream);
    first = false;
  }
  if (first && problem.M > 0 && problem.dx.data != nullptr) {
    clear(problem.dx, problem.dtype, problem.M, problem.d, stream);
  }
  cuda::cuda_check(cudaGetLastError(), kName);
}

std::size_t unfused_projection_backward_workspace_bytes(const ProjectionBackwardProblem& problem) {
  return Intermediates(problem).bytes;
}

void unfused_projection_both(const ProjectionForwardProblem& forward,
                             const ProjectionBackwardProblem& backward, const Context& context) {
  unfused_projection(forward, context);
  unfused_projection_backward(backward, context);
}

std::size_t unfused_projection_both_workspace_bytes(const ProjectionForwardProblem& forward,
                                                    const ProjectionBackwardProblem& backward) {
  return std::max(unfused_projection_workspace_bytes(forward),
                  unfused_projection_backward_workspace_bytes(backward));
}

}  // namespace tandem::bench
