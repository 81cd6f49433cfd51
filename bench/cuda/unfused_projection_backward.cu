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

/// dz, of which d_bias is the sum.
template <typename Element>
struct MatrixTerms {
  MatrixTensor matrix;

  __device__ Values operator()(std::int64_t row, int column) const {
    Values values;
    values.load(address<Element>(matrix, row, column));
    return values;
  }
};

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

void sum_bias(const ProjectionBackwardProblem& problem, const ProjectionBackwardSegment& segment,
              const MatrixTensor& dz, float* sums, cudaStream_t stream) {
  with_types(problem.dtype, segment.d_bias_dtype, [&]<class Element, class Out>(Element, Out) {
    sum_columns(MatrixTerms<Element>{dz}, problem.M, segment.columns, sums,
                static_cast<Out*>(segment.d_bias), problem.accumulate, stream);
  });
}

/// What a backward keeps, of one segment at a time.
struct Intermediates {
  std::size_t dz, sums, matmul, bytes;

  explicit Intermediates(const ProjectionBackwardProblem& problem) {
    check_baseline(problem);
    check_matrix(kName, problem.x, problem.dtype, problem.d);
    check_matrix(kName, problem.dx, problem.dtype, problem.d);
    std::int64_t dz_columns = 0, bias_columns = 0;
    for (int i = 0; i < problem.segment_count; ++i) {
      const ProjectionBackwardSegment& segment = problem.segments[i];
      if (segment.columns == 0) continue;
      check_matrix(kName, segment.weight, problem.dtype, problem.d);
      check_matrix(kName, segment.d_out, segment.out_dtype, segment.columns);
      check_matrix(kName, segment.slope, segment.out_dtype, segment.columns);
      check_matrix(kName, segment.out, segment.out_dtype, segment.columns);
      check_matrix(kName, segment.d_weight, segment.d_weight_dtype, problem.d);
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
    sum_bias(problem, segment, dz, scratch.at<float>(at.sums), stream);
  }
}

/// Writes the gradients of weights that nothing depends on.
void clear_segment(const ProjectionBackwardProblem& problem,
                   const ProjectionBackwardSegment& segment, cudaStream_t stream) {
  if (problem.accumulate) return;
  if (segment.d_weight.data != nullptr) {
    clear_matrix(kName, segment.d_weight, segment.d_weight_dtype, segment.columns, problem.d,
                 stream);
  }
  if (segment.d_bias != nullptr) {
    clear_matrix(kName, {segment.d_bias, segment.columns}, segment.d_bias_dtype, 1, segment.columns,
                 stream);
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
    clear_matrix(kName, problem.dx, problem.dtype, problem.M, problem.d, stream);
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
