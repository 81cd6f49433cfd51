// projection, unfused: every product, and what follows it, a kernel of its own.
//
//   forward, per segment    z = x W^T           cuBLASLt, into out
//                           out = f(z + bias)   in place, slope or inverse_norm beside it; none for
//                                               a product alone
//   backward, per segment   dz                  element-wise; none where 16-bit d_out is dz
//                           dx += dz W          cuBLASLt
//                           d_weight = dz^T x   cuBLASLt
//                           d_bias              sums over slices of the rows, then of the slices
//
// z is rounded to out's dtype before what follows it, dz to 16 bits, dx after each segment, as
// torch's products and kernels round them. Values in between are fp32. Each element-wise thread
// takes eight elements of a row, and lanes side by side share a head.
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <algorithm>
#include <bit>
#include <cstdint>

#include "batched_matmul.h"
#include "bench/cuda/unfused.h"
#include "cuda/runtime/workspace.h"

namespace tandem::bench {
namespace {

constexpr const char* kName = "unfused projection";  // in errors
constexpr int kThreads = 256;
constexpr int kVector = 8;  // elements of a thread
constexpr int kSumLanes = 16, kSumRows = kThreads / kSumLanes;
constexpr int kSumColumns = kSumLanes * kVector;
constexpr unsigned kWholeWarp = ~0u;

template <typename T>
struct alignas(16) Part {
  T values[kVector];
};

/// The eight values of a thread.
struct Values {
  float at[kVector];

  template <typename T>
  __device__ void load(const T* from) {
    const Part<T> part = *reinterpret_cast<const Part<T>*>(from);
    for (int i = 0; i < kVector; ++i) at[i] = static_cast<float>(part.values[i]);
  }
  template <typename T>
  __device__ void store(T* to) const {
    Part<T> part;
    for (int i = 0; i < kVector; ++i) part.values[i] = T(at[i]);
    *reinterpret_cast<Part<T>*>(to) = part;
  }
};

template <typename T>
__device__ T* address(const MatrixTensor& matrix, std::int64_t row, int column) {
  return static_cast<T*>(matrix.data) + row * matrix.row_stride + column;
}

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

/// The threads of a matrix: a row's along x, `width` of them.
struct Threads {
  int width;
  dim3 block, grid;

  Threads(std::int64_t rows, int row_threads) : width(row_threads) {
    const auto along = std::min<unsigned>(std::bit_ceil(static_cast<unsigned>(width)), kThreads);
    block = dim3(along, kThreads / along);
    grid = dim3(static_cast<unsigned>((rows + block.y - 1) / block.y), (width - 1) / along + 1);
  }
};

__device__ std::int64_t thread_row() { return std::int64_t{blockIdx.x} * blockDim.y + threadIdx.y; }
__device__ int thread_in_row() { return static_cast<int>(blockIdx.y * blockDim.x + threadIdx.x); }

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

/// Lanes that share a head: a power of two, the last of them perhaps idle.
int head_lanes(int head_width) {
  return static_cast<int>(std::bit_ceil(static_cast<unsigned>(head_width / kVector)));
}

/// What a thread has of its head. Threads outside take part in the sums, with zeros.
struct HeadPart {
  std::int64_t row;
  int head, lane, column;
  bool inside;

  __device__ HeadPart(std::int64_t M, int columns, int head_width, int lanes)
      : row(thread_row()), head(thread_in_row() / lanes), lane(thread_in_row() % lanes) {
    column = head * head_width + lane * kVector;
    inside = row < M && column < columns && lane * kVector < head_width;
  }
};

/// The sum of a b over a head, in each of its lanes.
__device__ float head_sum(const Values& a, const Values& b, int lanes) {
  float sum = 0.0f;
  for (int i = 0; i < kVector; ++i) sum += a.at[i] * b.at[i];
  for (int apart = lanes / 2; apart > 0; apart /= 2) {
    sum += __shfl_xor_sync(kWholeWarp, sum, apart);
  }
  return sum;
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

/// Calls body(Element{}, Out{}): the 16-bit dtype of a call, and that of a segment's tensors.
template <class Body>
void with_types(DType dtype, DType out_dtype, const Body& body) {
  const auto with = [&](auto element) {
    out_dtype == DType::kFloat32 ? body(element, float{}) : body(element, element);
  };
  dtype == DType::kBFloat16 ? with(__nv_bfloat16{}) : with(__half{});
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

/// Refuses what has no whole vectors of 16 bytes.
void check_matrix(const MatrixTensor& matrix, DType dtype, int columns) {
  if (matrix.data == nullptr) return;
  const bool aligned = reinterpret_cast<std::uintptr_t>(matrix.data) % 16 == 0 &&
                       matrix.row_stride * size_of(dtype) % 16 == 0;
  if (aligned && matrix.row_stride >= columns && columns % kVector == 0) return;
  throw Unsupported(
      "[unfused projection] columns and d must be multiples of 8, and rows begin apart from each "
      "other at multiples of 16 bytes");
}

/// A tensor without gaps.
void check_row(const void* data, DType dtype, int columns) {
  check_matrix({const_cast<void*>(data), columns}, dtype, columns);
}

std::size_t checked_workspace_bytes(const ProjectionForwardProblem& problem) {
  check_baseline(problem);
  check_matrix(problem.x, problem.dtype, problem.d);
  for (int i = 0; i < problem.segment_count; ++i) {
    const ProjectionForwardSegment& segment = problem.segments[i];
    if (segment.columns == 0) continue;
    check_matrix(segment.weight, problem.dtype, problem.d);
    check_matrix(segment.out, segment.out_dtype, segment.columns);
    check_matrix(segment.slope, segment.out_dtype, segment.columns);
    check_row(segment.bias, segment.bias_dtype, segment.columns);
  }
  return kMatmulWorkspaceBytes;
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

}  // namespace tandem::bench
