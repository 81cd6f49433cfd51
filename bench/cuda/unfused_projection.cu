// projection, unfused: every product, and what follows it, a kernel of its own. Per segment
//
//   z = x W^T           cuBLASLt, into out
//   out = f(z + bias)   in place, slope or inverse_norm beside it; none for a product alone
//
// z is rounded to out's dtype before what follows it, as torch's products and kernels round it.
// Values in between are fp32.
#include <cstdint>

#include "batched_matmul.h"
#include "bench/cuda/unfused.h"
#include "bench/cuda/unfused_projection.cuh"
#include "cuda/runtime/workspace.h"

namespace tandem::bench {
namespace {

using namespace projection;

/// z + bias, of a product that lies in out.
template <typename Element, typename Out>
__device__ Values pre_activation(const ProjectionForwardSegment& segment, std::int64_t row,
                                 int column) {
  Values z, bias;
  z.load(address<Out>(segment.out, row, column));
  if (segment.bias == nullptr) return z;
  if (segment.bias_dtype == DType::kFloat32) {
    bias.load(static_cast<const float*>(segment.bias) + column);
  } else {
    bias.load(static_cast<const Element*>(segment.bias) + column);
  }
  for (int i = 0; i < kVector; ++i) z.at[i] += bias.at[i];
  return z;
}

/// f(z) and df/dz. e^-|z| is at most 1: nothing overflows, and the complement of a sigmoid is as
/// exact as itself.
template <Activation kActivation>
__device__ float2 activate(const ProjectionForwardSegment& segment, float z) {
  if constexpr (kActivation == Activation::kNone) return {z, 1.0f};
  const float e = expf(-fabsf(z)), r = 1.0f / (1.0f + e);
  const float sigmoid = z < 0.0f ? e * r : r, complement = z < 0.0f ? r : e * r;
  if constexpr (kActivation == Activation::kSilu) {
    return {z * sigmoid, sigmoid * (1.0f + z * complement)};
  }
  if constexpr (kActivation == Activation::kSigmoid) return {sigmoid, sigmoid * complement};
  if constexpr (kActivation == Activation::kLogSigmoid) {
    const float scale = 1.0f / static_cast<float>(segment.divisor);
    return {scale * (fminf(z, 0.0f) - log1pf(e)), scale * complement};
  }
  const float y = fmaxf(z, 0.0f) + log1pf(e);  // softplus; NaN passes both comparisons
  const auto min = static_cast<float>(segment.min), max = static_cast<float>(segment.max);
  return y < min ? float2{min, 0.0f} : y > max ? float2{max, 0.0f} : float2{y, sigmoid};
}

template <typename Element, typename Out, Activation kActivation>
__global__ void __launch_bounds__(kThreads)
    activate_kernel(std::int64_t M, ProjectionForwardSegment segment) {
  const std::int64_t row = thread_row();
  const int column = thread_in_row() * kVector;
  if (row >= M || column >= segment.columns) return;
  const Values z = pre_activation<Element, Out>(segment, row, column);
  Values out, slope;
  for (int i = 0; i < kVector; ++i) {
    const float2 point = activate<kActivation>(segment, z.at[i]);
    out.at[i] = point.x;
    slope.at[i] = point.y;
  }
  out.store(address<Out>(segment.out, row, column));
  if (segment.slope.data != nullptr) slope.store(address<Out>(segment.slope, row, column));
}

template <typename Element, typename Out>
__global__ void __launch_bounds__(kThreads)
    normalize_kernel(std::int64_t M, ProjectionForwardSegment segment, int lanes) {
  const HeadPart part(M, segment.columns, segment.head_width, lanes);
  Values z = {};
  if (part.inside) z = pre_activation<Element, Out>(segment, part.row, part.column);
  const float inverse =
      1.0f / sqrtf(head_sum(z, z, lanes) + static_cast<float>(kL2NormalizeEpsilon));
  if (!part.inside) return;
  for (float& value : z.at) value *= inverse;
  z.store(address<Out>(segment.out, part.row, part.column));
  if (segment.inverse_norm.data != nullptr && part.lane == 0) {
    *address<float>(segment.inverse_norm, part.row, part.head) = inverse;
  }
}

template <typename Element, typename Out>
auto activate_kernel_of(Activation activation) {
  switch (activation) {
    case Activation::kSilu: return activate_kernel<Element, Out, Activation::kSilu>;
    case Activation::kSigmoid: return activate_kernel<Element, Out, Activation::kSigmoid>;
    case Activation::kLogSigmoid: return activate_kernel<Element, Out, Activation::kLogSigmoid>;
    case Activation::kSoftplus: return activate_kernel<Element, Out, Activation::kSoftplus>;
    default: return activate_kernel<Element, Out, Activation::kNone>;
  }
}

/// What follows a segment's product.
void finish(const ProjectionForwardProblem& problem, const ProjectionForwardSegment& segment,
            cudaStream_t stream) {
  if (segment.activation == Activation::kNone && segment.bias == nullptr) return;
  with_types(problem.dtype, segment.out_dtype, [&]<class Element, class Out>(Element, Out) {
    if (segment.activation == Activation::kL2Normalize) {
      const int lanes = head_lanes(segment.head_width);
      const Threads threads(problem.M, segment.columns / segment.head_width * lanes);
      normalize_kernel<Element, Out>
          <<<threads.grid, threads.block, 0, stream>>>(problem.M, segment, lanes);
    } else {
      const Threads threads(problem.M, segment.columns / kVector);
      const auto kernel = activate_kernel_of<Element, Out>(segment.activation);
      kernel<<<threads.grid, threads.block, 0, stream>>>(problem.M, segment);
    }
  });
}

/// A tensor without gaps.
void check_row(const void* data, DType dtype, int columns) {
  check_matrix(kName, {const_cast<void*>(data), columns}, dtype, columns);
}

std::size_t checked_workspace_bytes(const ProjectionForwardProblem& problem) {
  check_baseline(problem);
  check_matrix(kName, problem.x, problem.dtype, problem.d);
  for (int i = 0; i < problem.segment_count; ++i) {
    const ProjectionForwardSegment& segment = problem.segments[i];
    if (segment.columns == 0) continue;
    check_matrix(kName, segment.weight, problem.dtype, problem.d);
    check_matrix(kName, segment.out, segment.out_dtype, segment.columns);
    check_matrix(kName, segment.slope, segment.out_dtype, segment.columns);
    check_row(segment.bias, segment.bias_dtype, segment.columns);
  }
  return kMatmulWorkspaceBytes;
}

}  // namespace

void unfused_projection(const ProjectionForwardProblem& problem, const Context& context) {
  const std::size_t bytes = checked_workspace_bytes(problem);
  if (problem.M == 0) return;
  const cuda::DeviceGuard guard(problem.device.index);
  const cuda::ScratchMemory scratch(kName, context, bytes);
  const auto stream = static_cast<cudaStream_t>(context.stream.handle);
  for (int i = 0; i < problem.segment_count; ++i) {
    const ProjectionForwardSegment& segment = problem.segments[i];
    if (segment.columns == 0) continue;
    multiply({.dtype = cuda_type(problem.dtype),
              .batch = 1,
              .M = problem.M,
              .N = segment.columns,
              .K = problem.d,
              .alpha = 1.0f,
              .a = {problem.x.data, false, problem.x.row_stride},
              .b = {segment.weight.data, true, segment.weight.row_stride},
              .d = segment.out.data,
              .d_row_stride = segment.out.row_stride,
              .fp32 = segment.out_dtype == DType::kFloat32},
             scratch.at<void>(0), stream);
    finish(problem, segment, stream);
  }
  cuda::cuda_check(cudaGetLastError(), kName);
}

std::size_t unfused_projection_workspace_bytes(const ProjectionForwardProblem& problem) {
  return checked_workspace_bytes(problem);
}

}  // namespace tandem::bench
