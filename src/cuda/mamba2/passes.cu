// The passes around Mamba-2's recurrence: a thread per eight columns of a head of a token. Bound by
// memory: x read and v written, or x and o read and o written.
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>

#include "cuda/mamba2/weight.cuh"
#include "cuda/parts/eight.cuh"
#include "cuda/parts/stream_order.cuh"
#include "cuda/runtime/call_scope.h"
#include "cuda/runtime/launch.h"
#include "cuda/runtime/plan.h"
#include "ops/mamba2.h"

namespace tandem::cuda {
namespace {

constexpr int kThreads = 256;

/// A thread's columns of a head; `count` of the eight are there.
struct Columns {
  std::int64_t row, item;  // item: the row's head, in [M,H]
  int head, first, count;

  __device__ explicit Columns(const Mamba2Heads& p) {
    const std::int64_t thread = std::int64_t{blockIdx.x} * kThreads + threadIdx.x;
    const int eights = (p.P + 7) / 8;
    item = thread / eights;
    row = item / p.H;
    head = static_cast<int>(item % p.H);
    first = static_cast<int>(thread % eights) * 8;
    count = row < p.M ? min(8, p.P - first) : 0;
  }
  template <class Element>
  __device__ Element* of(const MatrixTensor& matrix, int P) const {
    return static_cast<Element*>(matrix.data) + row * matrix.row_stride + head * P + first;
  }
};

template <class Element>
__global__ __launch_bounds__(kThreads) void discretize_kernel(
    const __grid_constant__ DiscretizeProblem p) {
  follow_stream();
  const Columns at(p);
  if (at.count == 0) return;
  const float dt = p.dt[at.item];
  if (at.first == 0) p.log_decay[at.item] = -expf(weight_at<Element>(p.A_log, at.head)) * dt;
  float v[8];
  load_eight(at.of<const Element>(p.x, p.P), at.count, v);
#pragma unroll
  for (float& value : v) value *= dt;
  store_eight(at.of<Element>(p.v, p.P), at.count, v);
}

template <class Element>
__global__ __launch_bounds__(kThreads) void add_skip_kernel(const __grid_constant__ SkipProblem p) {
  follow_stream();
  const Columns at(p);
  if (at.count == 0) return;
  const float D = weight_at<Element>(p.D, at.head);
  float x[8], o[8];
  load_eight(at.of<const Element>(p.x, p.P), at.count, x);
  load_eight(at.of<const Element>(p.o, p.P), at.count, o);
#pragma unroll
  for (int j = 0; j < 8; ++j) o[j] = fmaf(D, x[j], o[j]);
  store_eight(at.of<Element>(p.o, p.P), at.count, o);
}

/// A block's products have refused any dtype but these two.
template <class Problem>
void launch(const char* name, const Problem& p, const Context& context, void (*bf16)(Problem),
            void (*fp16)(Problem)) {
  const std::int64_t threads = p.M * p.H * ceil_div(p.P, 8);
  if (threads == 0) return;
  const CallScope scope(name, p.device.index);
  launch_kernel(name, p.dtype == DType::kBFloat16 ? bf16 : fp16,
                {.blocks = static_cast<unsigned>(ceil_div(threads, kThreads)), .threads = kThreads},
                static_cast<cudaStream_t>(context.stream.handle), p);
}

}  // namespace

void discretize(const DiscretizeProblem& p, const Context& context) {
  launch("discretize", p, context, discretize_kernel<__nv_bfloat16>, discretize_kernel<__half>);
}

void add_skip(const SkipProblem& p, const Context& context) {
  launch("add_skip", p, context, add_skip_kernel<__nv_bfloat16>, add_skip_kernel<__half>);
}

}  // namespace tandem::cuda
