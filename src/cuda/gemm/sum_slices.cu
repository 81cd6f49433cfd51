// gemm_sum_slices_kernel.
#include "cuda/gemm/sum_slices.h"

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "cuda/parts/stream_order.cuh"
#include "cuda/runtime/launch.h"
#include "cuda/runtime/plan.h"

namespace tandem::cuda::gemm {
namespace {

constexpr int kThreads = 256;

__host__ __device__ int groups_of(int slices) { return slices < 16 ? 1 : slices < 256 ? 8 : 32; }

/// Stores neighbouring elements of a row, or adds them to what is there.
template <class Stored, int kVector>
__device__ void put(Stored* to, const float (&sums)[kVector], bool accumulate) {
  struct alignas(sizeof(Stored) * kVector) Vector {
    Stored at[kVector];
  };
  const bool aligned = reinterpret_cast<std::uintptr_t>(to) % sizeof(Vector) == 0;
  Vector values{};
  if (accumulate && aligned) values = *reinterpret_cast<const Vector*>(to);
#pragma unroll
  for (int i = 0; i < kVector; ++i) {
    if (accumulate && !aligned) values.at[i] = to[i];
    const float before = accumulate ? static_cast<float>(values.at[i]) : 0.0f;
    values.at[i] = static_cast<Stored>(before + sums[i]);
    if (!aligned) to[i] = values.at[i];
  }
  if (aligned) *reinterpret_cast<Vector*>(to) = values;
}

/// Up to four neighbouring elements of a row per thread, and a group of slices, every groups-th
/// one; then the groups' sums are added up: one order, but as many loads on their way as there are
/// slices.
template <class Element, int kVector>
__global__ __launch_bounds__(kThreads) void gemm_sum_slices_kernel(
    const __grid_constant__ SumSlicesParams params) {
  struct alignas(4 * kVector) Values {
    float at[kVector] = {};

    __device__ void add(const Values& other) {
#pragma unroll
      for (int i = 0; i < kVector; ++i) at[i] += other.at[i];
    }
  };
  follow_stream();
  __shared__ Values sums[kThreads];
  const int groups = groups_of(params.slices);
  const int pieces = kThreads / groups;  // of the block
  const int piece = static_cast<int>(threadIdx.x) % pieces;
  const std::int64_t count = params.rows * params.columns;
  const std::int64_t i = (std::int64_t{blockIdx.x} * pieces + piece) * kVector;
  Values sum;
  if (i < count) {
#pragma unroll 8
    for (int slice = threadIdx.x / pieces; slice < params.slices; slice += groups) {
      sum.add(*reinterpret_cast<const Values*>(params.partial_sums + slice * count + i));
    }
  }
  sums[threadIdx.x] = sum;
  __syncthreads();
  if (threadIdx.x >= pieces || i >= count) return;
  for (int group = 1; group < groups; ++group) sum.add(sums[group * pieces + piece]);
  const std::int64_t at = i / params.columns * params.result.row_stride + i % params.columns;
  if (params.fp32) {
    put(static_cast<float*>(params.result.data) + at, sum.at, params.accumulate);
  } else {
    put(static_cast<Element*>(params.result.data) + at, sum.at, params.accumulate);
  }
}

}  // namespace

template <class Element>
void launch_sum_slices(const char* name, const SumSlicesParams& params, void* stream) {
  // why not with many slices: there are few elements then, and too few threads.
  const int groups = groups_of(params.slices);
  const bool by_fours = params.columns % 4 == 0 && groups == 1;
  const std::int64_t pieces = params.rows * params.columns / (by_fours ? 4 : 1);
  const std::int64_t blocks = ceil_div(pieces, kThreads / groups);
  if (blocks == 0) return;
  const auto kernel =
      by_fours ? gemm_sum_slices_kernel<Element, 4> : gemm_sum_slices_kernel<Element, 1>;
  launch_kernel(name, kernel, {.blocks = static_cast<unsigned>(blocks), .threads = kThreads},
                static_cast<cudaStream_t>(stream), params);
}

template void launch_sum_slices<__nv_bfloat16>(const char*, const SumSlicesParams&, void*);
#ifndef TANDEM_CUDA_DEV
template void launch_sum_slices<__half>(const char*, const SumSlicesParams&, void*);
#endif

}  // namespace tandem::cuda::gemm
