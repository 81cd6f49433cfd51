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
#include <string>

#include "batched_matmul.h"
#include "scan.h"
#include "status.h"

namespace tandem::bench {
namespace {

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
__device__ T* tokens_of(const tandem_bench_tokens& x, std::int64_t b) {
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
    scan_kernel(Shape shape, tandem_bench_tokens x, tandem_bench_tokens decay,
                tandem_bench_tokens s, const float* initial_state, float* final_state) {
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
__global__ void gate_kernel(Shape shape, const T* s, tandem_bench_tokens gate,
                            tandem_bench_tokens out) {
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

bool aligned(const tandem_bench_tokens& x) {
  return reinterpret_cast<std::uintptr_t>(x.data) % 16 == 0 && x.batch_stride % kVector == 0 &&
         x.time_stride % kVector == 0;
}

unsigned blocks(std::int64_t threads, int per_block) {
  return static_cast<unsigned>((threads + per_block - 1) / per_block);
}

void require(bool good, const std::string& text) {
  if (!good) throw std::runtime_error("[unfused scan] " + text);
}

void check_call(const tandem_bench_scan& call) {
  require(call.dtype == TANDEM_BENCH_BF16 || call.dtype == TANDEM_BENCH_FP16,
          "dtype must be bf16 or fp16");
  require(call.B >= 0 && call.T >= 0 && call.D > 0, "B and T must be at least 0, D at least 1");
  require(call.cu_seqlens == nullptr, "takes dense batches only, not cu_seqlens");
  if (call.d == 0) return;
  const auto dense = [&](const void* data, bool no_gaps) {
    return no_gaps && reinterpret_cast<std::uintptr_t>(data) % kMatmulAlignment == 0;
  };
  const bool rows = call.u.time_stride == call.d || call.B * call.T < 2;
  const bool batches = call.u.batch_stride == call.T * call.d || call.B < 2 || call.T == 0;
  require(dense(call.u.data, rows && batches) &&
              dense(call.weight, call.weight_stride == call.d || call.D < 2),
          "u and weight must have no gaps and begin at multiples of 256 bytes");
}

/// The intermediates, one after another in the caller's workspace. x comes first.
struct Intermediates {
  std::size_t bytes = 0;
  std::size_t x, s, matmul;

  explicit Intermediates(const tandem_bench_scan& call, bool only_product = false) {
    const std::size_t tensor = static_cast<std::size_t>(call.B) * call.T * call.D * 2;
    x = take(call.d > 0 ? tensor : 0);
    s = take(!only_product && call.gate.data ? tensor : 0);
    matmul = take(call.d > 0 ? kMatmulWorkspaceBytes : 0);
  }

 private:
  std::size_t take(std::size_t size) {
    const std::size_t at = bytes;
    bytes += (size + 255) / 256 * 256;
    return at;
  }
};

void check_workspace(std::size_t needed, std::size_t given) {
  require(given >= needed,
          "workspace must have " + std::to_string(needed) + " bytes, got " + std::to_string(given));
}

/// A [B,T,D] intermediate without gaps.
tandem_bench_tokens dense(const tandem_bench_scan& call, char* data) {
  return {data, call.T * call.D, call.D};
}

void project(const tandem_bench_scan& call, const Intermediates& at, char* workspace,
             cudaStream_t stream) {
  if (call.B * call.T == 0) return;
  const cudaDataType_t dtype = call.dtype == TANDEM_BENCH_BF16 ? CUDA_R_16BF : CUDA_R_16F;
  multiply({dtype,
            1,
            call.B * call.T,
            call.D,
            call.d,
            1.0f,
            {call.u.data},
            {call.weight, true},
            workspace + at.x},
           workspace + at.matmul, stream);
}

template <typename T, typename Decay>
void scan(const tandem_bench_scan& call, const tandem_bench_tokens& x, const tandem_bench_tokens& s,
          cudaStream_t stream) {
  const auto kernel = call.log_decay ? scan_kernel<T, Decay, true> : scan_kernel<T, Decay, false>;
  kernel<<<blocks(call.B * call.D, kScanThreads), kScanThreads, 0, stream>>>(
      {call.B, call.T, call.D}, x, call.decay, s, call.initial_state, call.final_state);
}

template <typename T, int kWidth>
void apply_gate(const tandem_bench_scan& call, const tandem_bench_tokens& s, cudaStream_t stream) {
  const std::int64_t threads = call.B * call.T * (call.D / kWidth);
  gate_kernel<T, kWidth><<<blocks(threads, kGateThreads), kGateThreads, 0, stream>>>(
      {call.B, call.T, call.D}, static_cast<const T*>(s.data), call.gate, call.out);
}

template <typename T>
void forward(const tandem_bench_scan& call, char* workspace, cudaStream_t stream) {
  if (call.B == 0) return;
  const Intermediates at(call);
  tandem_bench_tokens x = call.x;
  if (call.d > 0) {
    x = dense(call, workspace + at.x);
    project(call, at, workspace, stream);
  }
  const bool gated = call.gate.data != nullptr;
  const tandem_bench_tokens s = gated ? dense(call, workspace + at.s) : call.out;
  (call.fp32_decay ? scan<T, float> : scan<T, T>)(call, x, s, stream);
  if (gated && call.T > 0) {
    const bool vectors = call.D % kVector == 0 && aligned(call.gate) && aligned(call.out);
    (vectors ? apply_gate<T, kVector> : apply_gate<T, 1>)(call, s, stream);
  }
  check(cudaGetLastError(), "unfused scan");
}

}  // namespace
}  // namespace tandem::bench

int tandem_bench_unfused_scan_workspace_bytes(const tandem_bench_scan* call, size_t* bytes) {
  using namespace tandem::bench;
  return guarded([&] {
    check_call(*call);
    *bytes = Intermediates(*call).bytes;
  });
}

int tandem_bench_unfused_scan_forward(const tandem_bench_scan* call, void* workspace,
                                      size_t workspace_bytes, void* stream) {
  using namespace tandem::bench;
  return guarded([&] {
    check_call(*call);
    check_workspace(Intermediates(*call).bytes, workspace_bytes);
    const DeviceScope scope(call->device);
    const auto run = call->dtype == TANDEM_BENCH_BF16 ? forward<__nv_bfloat16> : forward<__half>;
    run(*call, static_cast<char*>(workspace), static_cast<cudaStream_t>(stream));
  });
}

int tandem_bench_projection_workspace_bytes(const tandem_bench_scan* call, size_t* bytes) {
  using namespace tandem::bench;
  return guarded([&] {
    check_call(*call);
    *bytes = Intermediates(*call, true).bytes;
  });
}

int tandem_bench_projection_forward(const tandem_bench_scan* call, void* workspace,
                                    size_t workspace_bytes, void* stream) {
  using namespace tandem::bench;
  return guarded([&] {
    check_call(*call);
    const Intermediates at(*call, true);
    check_workspace(at.bytes, workspace_bytes);
    const DeviceScope scope(call->device);
    project(*call, at, static_cast<char*>(workspace), static_cast<cudaStream_t>(stream));
  });
}
