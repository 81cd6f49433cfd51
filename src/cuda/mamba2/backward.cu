// The gradients through the passes around Mamba-2's recurrence: a warp per head and slice of
// tokens, of which it takes several at once where a head is narrow. Bound by memory: x, d_o and dv
// read, dx written.
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <algorithm>
#include <cstdint>

#include "cuda/gemm/sum_slices.h"
#include "cuda/mamba2/weight.cuh"
#include "cuda/parts/eight.cuh"
#include "cuda/parts/stream_order.cuh"
#include "cuda/parts/warp_sums.cuh"
#include "cuda/runtime/call_scope.h"
#include "cuda/runtime/launch.h"
#include "cuda/runtime/plan.h"
#include "ops/mamba2.h"

namespace tandem::cuda {
namespace {

constexpr const char* kName = "mamba2_backward";
constexpr int kWarps = 8;

struct Params {
  Mamba2BackwardProblem problem;
  int lanes;    // of a token's head: a power of two up to 32
  float* sums;  // [2,slices,H], of d_A_log and d_D
};

__device__ float sum_of_lanes(float value, int lanes) {
  for (int i = lanes / 2; i > 0; i /= 2) value += __shfl_xor_sync(0xffffffff, value, i);
  return value;
}

template <class Element>
__global__ __launch_bounds__(32 * kWarps) void mamba2_backward_kernel(
    const __grid_constant__ Params params) {
  follow_stream();
  const Mamba2BackwardProblem& p = params.problem;
  const int head = static_cast<int>(blockIdx.x) * kWarps + static_cast<int>(threadIdx.x) / 32;
  if (head >= p.H) return;
  const int lane = threadIdx.x % 32, lanes = params.lanes, place = lane % lanes;
  const std::int64_t slices = gridDim.y, slice = blockIdx.y, end = p.M * (slice + 1) / slices;
  const float rate = -expf(weight_at<Element>(p.A_log, head)), D = weight_at<Element>(p.D, head);
  float of_A_log = 0, of_D = 0;
  for (std::int64_t first = p.M * slice / slices; first < end; first += 32 / lanes) {
    const std::int64_t row = first + lane / lanes, item = row * p.H + head;
    const bool inside = row < end;
    const float dt = inside ? p.dt[item] : 0.0f;
    float d_dt = 0;
    for (int column = 8 * place; column < p.P; column += 8 * lanes) {
      const int count = inside ? min(8, p.P - column) : 0;
      const auto at = [&](const MatrixTensor& matrix) {
        return static_cast<Element*>(matrix.data) + row * matrix.row_stride + head * p.P + column;
      };
      float x[8], d_o[8], dv[8];
      load_eight<Element>(at(p.x), count, x);
      load_eight<Element>(at(p.d_o), count, d_o);
      load_eight<Element>(at(p.dv), count, dv);
#pragma unroll
      for (int j = 0; j < 8; ++j) {
        d_dt = fmaf(dv[j], x[j], d_dt);
        of_D = fmaf(d_o[j], x[j], of_D);
        dv[j] = fmaf(dv[j], dt, D * d_o[j]);
      }
      store_eight(at(p.dx), count, dv);
    }
    d_dt = sum_of_lanes(d_dt, lanes);
    if (inside && place == 0) {
      p.d_dt[item] = fmaf(rate, p.d_log_decay[item], d_dt);
      of_A_log = fmaf(p.d_log_decay[item], p.log_decay[item], of_A_log);
    }
  }
  of_A_log = sum_warp(of_A_log);
  of_D = sum_warp(of_D);
  if (lane > 0) return;
  params.sums[slice * p.H + head] = of_A_log;
  params.sums[(slices + slice) * p.H + head] = of_D;
}

/// Into how many slices tokens are cut: some for each multiprocessor of an H200.
int slices_of(const Mamba2BackwardProblem& p) {
  const std::int64_t most = 8 * 132 / ceil_div(p.H, kWarps);
  return static_cast<int>(std::clamp<std::int64_t>(p.M / 32, 1, std::max<std::int64_t>(most, 1)));
}

template <class Element>
void run(const Mamba2BackwardProblem& p, float* sums, void* stream) {
  const int slices = slices_of(p);
  if (p.M > 0) {
    int lanes = 1;
    while (lanes < 32 && 8 * lanes < p.P) lanes *= 2;
    launch_kernel(kName, mamba2_backward_kernel<Element>,
                  {.blocks = static_cast<unsigned>(ceil_div(p.H, kWarps)),
                   .blocks_y = static_cast<unsigned>(slices),
                   .threads = 32 * kWarps},
                  static_cast<cudaStream_t>(stream), Params{p, lanes, sums});
  }
  const auto finish = [&](const WeightVectorGradient& to, std::int64_t first) {
    if (to.data == nullptr) return;
    gemm::SumSlicesParams sum;
    sum.partial_sums = sums + first;
    sum.slices = p.M > 0 ? slices : 0;
    sum.rows = 1;
    sum.columns = p.H;
    sum.result = {to.data, p.H};
    sum.fp32 = to.dtype == DType::kFloat32;
    gemm::launch_sum_slices<Element>(kName, sum, stream);
  };
  finish(p.d_A_log, 0);
  finish(p.d_D, std::int64_t{slices} * p.H);
}

}  // namespace

void mamba2_backward(const Mamba2BackwardProblem& p, const Context& context) {
  const CallScope scope(kName, p.device.index);
  auto* const sums = static_cast<float*>(context.workspace.data);
  if (p.dtype == DType::kBFloat16) return run<__nv_bfloat16>(p, sums, context.stream.handle);
#ifndef TANDEM_CUDA_DEV
  run<__half>(p, sums, context.stream.handle);
#endif
}

std::size_t mamba2_backward_workspace_bytes(const Mamba2BackwardProblem& p) {
  return std::size_t{sizeof(float)} * 2 * slices_of(p) * p.H;
}

}  // namespace tandem::cuda
