// gated_scan and linear_scan forward, unfused: every step a kernel of its own.
//
//   1. x = u W^T              cuBLASLt, of linear_scan only
//   2. s_t = a_t s_(t-1) + x_t a thread per channel, token after token
//   3. out = silu(gate) s     element-wise, eight elements per thread; none without a gate: then
//                             step 2 writes out
//
// x and s between the kernels are 16-bit, as torch's products and element-wise kernels give them.
// The state inside step 2 is fp32. Its loop waits for memory as little as such a loop can: the
// tokens of the next kAhead steps are on their way while these kAhead are worked on.
//
// A decay of 0 forgets exactly, whatever the state was, as in Tandem's own kernels.
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cfloat>
#include <cstdint>

#include "batched_matmul.h"
#include "bench/cuda/unfused.h"
#include "cuda/runtime/workspace.h"

namespace tandem::bench {
namespace {

constexpr const char* kName = "unfused scan";  // in errors
constexpr int kScanThreads = 64;  // few, so that few channels still spread over the SMs
constexpr int kAhead = 32;
constexpr int kGateThreads = 256;
constexpr int kVector = 8;  // 16-bit elements that a thread moves at once
// why: what cuBLASLt's heuristic takes for granted of an operand.
constexpr std::uintptr_t kMatmulAlignment = 256;

struct Shape {
  std::int64_t B, T;
  int D;
};

__device__ std::int64_t thread_index() {
  return std::int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
}

template <typename T>
__device__ T* tokens_of(const TokenTensor& x, std::int64_t b) {
  return static_cast<T*>(x.data) + b * x.batch_stride;
}

/// Returns the factor of the state, 0 where it forgets.
template <bool kLog, typename Decay>
__device__ float factor(Decay decay) {
  const float value = static_cast<float>(decay);
  if (!kLog) return value;
  const float a = expf(value);
  return a < FLT_MIN ? 0.0f : a;
}

/// Step 2: a thread per channel of a sequence; neighbours read side by side.
template <typename T, typename Decay, bool kLog>
__global__ void __launch_bounds__(kScanThreads)
    scan_kernel(Shape shape, TokenTensor x, TokenTensor decay, TokenTensor s,
                const float* initial_state, float* final_state) {
  const std::int64_t index = thread_index();
  if (index >= shape.B * shape.D) return;
  const std::int64_t b = index / shape.D, d = index % shape.D;
  const T* from = tokens_of<T>(x, b) + d;
  const Decay* decays = tokens_of<Decay>(decay, b) + d;
  T* to = tokens_of<T>(s, b) + d;
  float state = initial_state ? initial_state[index] : 0.0f;
  const auto step = [&](T input, Decay decay) {
    const float keep = factor<kLog>(decay);
    state = (keep == 0.0f ? 0.0f : keep * state) + static_cast<float>(input);
    *to = T(state);
    to += s.time_stride;
  };
  T coming_x[kAhead];
  Decay coming_decay[kAhead];
  const auto fetch = [&] {
#pragma unroll
    for (int i = 0; i < kAhead; ++i) {
      coming_x[i] = *from;
      coming_decay[i] = *decays;
      from += x.time_stride;
      decays += decay.time_stride;
    }
  };
  const std::int64_t groups = shape.T / kAhead;
  if (groups > 0) fetch();
  for (std::int64_t group = 0; group < groups; ++group) {
    T now[kAhead];
    Decay keep[kAhead];
#pragma unroll
    for (int i = 0; i < kAhead; ++i) {
      now[i] = coming_x[i];
      keep[i] = coming_decay[i];
    }
    if (group + 1 < groups) fetch();
#pragma unroll
    for (int i = 0; i < kAhead; ++i) step(now[i], keep[i]);
  }
  for (std::int64_t t = groups * kAhead; t < shape.T; ++t) {
    step(*from, *decays);
    from += x.time_stride;
    decays += decay.time_stride;
  }
  if (final_state) final_state[index] = state;
}

template <typename T, int kWidth>
struct alignas(sizeof(T) * kWidth) Vector {
  T values[kWidth];
};

/// Step 3: a thread per kWidth elements; s has no gaps.
template <typename T, int kWidth>
__global__ void gate_kernel(Shape shape, const T* s, TokenTensor gate, TokenTensor out) {
  using Part = Vector<T, kWidth>;
  const std::int64_t index = thread_index(), width = shape.D / kWidth;
  if (index >= shape.B * shape.T * width) return;
  const std::int64_t row = index / width, column = index % width * kWidth;
  const std::int64_t b = row / shape.T, t = row % shape.T;
  Part x = *reinterpret_cast<const Part*>(s + index * kWidth);
  const Part z =
      *reinterpret_cast<const Part*>(tokens_of<T>(gate, b) + t * gate.time_stride + column);
  for (int i = 0; i < kWidth; ++i) {
    const float value = static_cast<float>(z.values[i]);
    x.values[i] = T(value / (1.0f + expf(-value)) * static_cast<float>(x.values[i]));
  }
  *reinterpret_cast<Part*>(tokens_of<T>(out, b) + t * out.time_stride + column) = x;
}

bool aligned(const TokenTensor& x) {
  return reinterpret_cast<std::uintptr_t>(x.data) % 16 == 0 && x.batch_stride % kVector == 0 &&
         x.time_stride % kVector == 0;
}

unsigned blocks(std::int64_t threads, int per_block) {
  return static_cast<unsigned>((threads + per_block - 1) / per_block);
}

/// The intermediates, one after another in the workspace. x, of linear_scan only, comes first.
struct Intermediates {
  std::size_t x, s, matmul, bytes;

  Intermediates(const ScanRecurrence& call, bool product, bool gate) {
    const std::int64_t tensor = call.B * call.T * call.D * 2;
    cuda::WorkspaceLayout layout;
    x = layout.add(product ? tensor : 0);
    s = layout.add(gate ? tensor : 0);
    matmul = layout.add(product ? kMatmulWorkspaceBytes : 0);
    bytes = layout.bytes();
  }
};

/// Lays out the intermediates of a whole call, after checking that the baseline takes it.
Intermediates intermediates(const GatedScanForwardProblem& problem) {
  check_baseline(problem);
  return {problem, false, problem.gate.data != nullptr};
}

void check_product(const LinearScanForwardProblem& problem) {
  check_baseline(problem);
  if (problem.x.data != nullptr || problem.states != nullptr) {
    throw Unsupported("[unfused scan] nothing is kept for a backward");
  }
  const auto aligned = [](const void* data) {
    return reinterpret_cast<std::uintptr_t>(data) % kMatmulAlignment == 0;
  };
  const TokenTensor& u = problem.u;
  const bool rows = u.time_stride == problem.d || problem.B * problem.T < 2;
  const bool batches = u.batch_stride == problem.T * problem.d || problem.B < 2 || problem.T == 0;
  const bool weight = problem.weight.row_stride == problem.d || problem.D < 2;
  if (rows && batches && weight && aligned(u.data) && aligned(problem.weight.data)) return;
  throw Unsupported(
      "[unfused scan] u and weight must have no gaps and begin at multiples of 256 bytes");
}

Intermediates intermediates(const LinearScanForwardProblem& problem) {
  check_product(problem);
  return {problem, true, problem.gate.data != nullptr};
}

Intermediates intermediates_of_product(const LinearScanForwardProblem& problem) {
  check_product(problem);
  return {problem, true, false};
}

/// A [B,T,D] intermediate without gaps.
TokenTensor dense(const ScanRecurrence& call, void* data) {
  return {data, call.T * call.D, call.D};
}

void project(const LinearScanForwardProblem& call, const Intermediates& at,
             const cuda::ScratchMemory& scratch, cudaStream_t stream) {
  if (call.B * call.T == 0) return;
  const cudaDataType_t dtype = call.dtype == DType::kBFloat16 ? CUDA_R_16BF : CUDA_R_16F;
  multiply({dtype,
            1,
            call.B * call.T,
            call.D,
            call.d,
            1.0f,
            {call.u.data},
            {call.weight.data, true},
            scratch.at<void>(at.x)},
           scratch.at<void>(at.matmul), stream);
}

template <typename T, typename Decay>
void scan(const GatedScanForwardProblem& call, const TokenTensor& s, cudaStream_t stream) {
  const auto kernel = call.log_decay ? scan_kernel<T, Decay, true> : scan_kernel<T, Decay, false>;
  kernel<<<blocks(call.B * call.D, kScanThreads), kScanThreads, 0, stream>>>(
      {call.B, call.T, call.D}, call.x, call.decay, s, call.initial_state, call.final_state);
}

template <typename T, int kWidth>
void apply_gate(const GatedScanForwardProblem& call, const TokenTensor& s, cudaStream_t stream) {
  const std::int64_t threads = call.B * call.T * (call.D / kWidth);
  gate_kernel<T, kWidth><<<blocks(threads, kGateThreads), kGateThreads, 0, stream>>>(
      {call.B, call.T, call.D}, static_cast<const T*>(s.data), call.gate, call.out);
}

/// Steps 2 and 3; `s` is where step 2 leaves its result for step 3.
template <typename T>
void scan_and_gate(const GatedScanForwardProblem& call, void* s, cudaStream_t stream) {
  const bool gated = call.gate.data != nullptr;
  const TokenTensor to = gated ? dense(call, s) : call.out;
  (call.decay_dtype == DType::kFloat32 ? scan<T, float> : scan<T, T>)(call, to, stream);
  if (gated && call.T > 0) {
    const bool vectors = call.D % kVector == 0 && aligned(call.gate) && aligned(call.out);
    (vectors ? apply_gate<T, kVector> : apply_gate<T, 1>)(call, to, stream);
  }
  cuda::cuda_check(cudaGetLastError(), kName);
}

void scan_and_gate(const GatedScanForwardProblem& call, void* s, cudaStream_t stream) {
  if (call.B == 0) return;
  const bool bf16 = call.dtype == DType::kBFloat16;
  (bf16 ? scan_and_gate<__nv_bfloat16> : scan_and_gate<__half>)(call, s, stream);
}

}  // namespace

void unfused_gated_scan(const GatedScanForwardProblem& problem, const Context& context) {
  const Intermediates at = intermediates(problem);
  const cuda::DeviceGuard guard(problem.device.index);
  const cuda::ScratchMemory scratch(kName, context, at.bytes);
  scan_and_gate(problem, scratch.at<void>(at.s), static_cast<cudaStream_t>(context.stream.handle));
}

std::size_t unfused_gated_scan_workspace_bytes(const GatedScanForwardProblem& problem) {
  return intermediates(problem).bytes;
}

void unfused_linear_scan(const LinearScanForwardProblem& problem, const Context& context) {
  const Intermediates at = intermediates(problem);
  const cuda::DeviceGuard guard(problem.device.index);
  const cuda::ScratchMemory scratch(kName, context, at.bytes);
  const auto stream = static_cast<cudaStream_t>(context.stream.handle);
  project(problem, at, scratch, stream);
  GatedScanForwardProblem scan;
  static_cast<ScanRecurrence&>(scan) = problem;
  scan.x = dense(problem, scratch.at<void>(at.x));
  scan.out = problem.out;
  scan.final_state = problem.final_state;
  scan_and_gate(scan, scratch.at<void>(at.s), stream);
}

std::size_t unfused_linear_scan_workspace_bytes(const LinearScanForwardProblem& problem) {
  return intermediates(problem).bytes;
}

void product_of_linear_scan(const LinearScanForwardProblem& problem, const Context& context) {
  const Intermediates at = intermediates_of_product(problem);
  const cuda::DeviceGuard guard(problem.device.index);
  const cuda::ScratchMemory scratch(kName, context, at.bytes);
  project(problem, at, scratch, static_cast<cudaStream_t>(context.stream.handle));
}

std::size_t product_of_linear_scan_workspace_bytes(const LinearScanForwardProblem& problem) {
  return intermediates_of_product(problem).bytes;
}

}  // namespace tandem::bench
