// gla forward, unfused: chunks of 64 tokens, every step a kernel of its own.
//
//   1. decays       G = running sum of log_decay in each chunk, fp32
//   2. by head      q, k, v from [B,T,H,D] to [B,H,N,C,D], padded with zeros; k also times
//                   e^(G_C - G_j): the operand of the states          (three kernels)
//   3. P = scale q k^T                      cuBLASLt  [C,C]
//   4. P *= e^(G_i - G_j) where j <= i, 0 elsewhere, in place
//   5. intra = P v                          cuBLASLt  [C,V]
//   6. states = (k e^(G_C - G_j))^T v       cuBLASLt  [K,V]
//   7. S_n = e^(G_C) S_(n-1) + states_n     one walk over the chunks, each chunk's S_(n-1) in place
//   8. inter = scale q S_(n-1)              cuBLASLt  [C,V]
//   9. o = intra + e^(G_i) inter, back to [B,T,H,V]
//
// 16-bit are P, intra, inter, the decayed k, and the states between chunks: torch.bmm gives its
// result in its operands' dtype, and fp32 states alone would outweigh q, k, v and o. fp32 are the
// sums inside each product, the decays, and the state that step 7 carries. Grouped heads repeat q
// and k, as repeat_interleave does.
//
// Decays are exact: a step that leaves nothing of an fp32 number is counted, not added, and tokens
// with a different count do not reach each other (-inf never meets a subtraction).
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>

#include "batched_matmul.h"
#include "bench/cuda/unfused.h"
#include "cuda/runtime/workspace.h"

namespace tandem::bench {
namespace {

constexpr const char* kName = "unfused gla";  // in errors
constexpr int C = 64;
constexpr int kThreads = 256;
constexpr int kVector = 8;         // 16-bit elements that a thread moves at once
constexpr float kReset = -104.0f;  // e^-104 rounds to 0 in fp32

struct Decay {
  float sum;   // since the chunk began, resets counted as 0
  int resets;  // since the chunk began
};

/// Returns the factor from the later side of token `from` to token `to`.
__device__ float factor(const Decay& from, const Decay& to) {
  return from.resets == to.resets ? expf(to.sum - from.sum) : 0.0f;
}

/// Returns the factor from before the chunk to token `to`.
__device__ float factor(const Decay& to) { return to.resets == 0 ? expf(to.sum) : 0.0f; }

__device__ std::int64_t thread_index() {
  return std::int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
}

/// Eight 16-bit elements in one register quadruple.
template <typename T>
struct alignas(16) Vector {
  T values[kVector];
};

/// The chunk, token and head that a row of [B,H,N,C,D] holds.
struct Row {
  std::int64_t chunk;  // (b H + h) N + n
  std::int64_t b, t;
  int h, i;
};

struct Shape {
  std::int64_t B, T, N;
  int H;

  __device__ Row row(std::int64_t index) const {
    Row row;
    row.i = static_cast<int>(index % C);
    row.chunk = index / C;
    row.t = row.chunk % N * C + row.i;
    row.h = static_cast<int>(row.chunk / N % H);
    row.b = row.chunk / N / H;
    return row;
  }
};

/// Step 1: a thread per chunk; neighbours differ in the head, so that they read side by side.
__global__ void decays_kernel(Shape shape, DecayTensor log_decay, Decay* decays) {
  const std::int64_t index = thread_index();
  if (index >= shape.B * shape.N * shape.H) return;
  const std::int64_t h = index % shape.H, n = index / shape.H % shape.N;
  const std::int64_t b = index / shape.H / shape.N;
  const float* g = log_decay.data + b * log_decay.batch_stride + h * log_decay.head_stride;
  Decay* to = decays + ((b * shape.H + h) * shape.N + n) * C;
  Decay now{0.0f, 0};
#pragma unroll 8
  for (int i = 0; i < C; ++i) {
    const std::int64_t t = n * C + i;
    const float step = t < shape.T ? g[t * log_decay.time_stride] : 0.0f;
    if (step <= kReset) {
      ++now.resets;
    } else {
      now.sum += step;
    }
    to[i] = now;
  }
}

/// Step 2: a thread per eight elements. `group`: value heads per stored head. `decayed`: null, or
/// where to put each token times its factor to the chunk's end.
template <typename T>
__global__ void by_head_kernel(Shape shape, StridedTensor from, int group, int D, bool aligned,
                               T* plain, T* decayed, const Decay* decays) {
  const std::int64_t index = thread_index();
  const int vectors = D / kVector;
  if (index >= shape.B * shape.H * shape.N * C * vectors) return;
  const Row row = shape.row(index / vectors);
  const std::int64_t column = index % vectors * kVector;
  Vector<T> x;
  for (T& value : x.values) value = T(0.0f);
  if (row.t < shape.T) {
    const T* source = static_cast<const T*>(from.data) + row.b * from.batch_stride +
                      row.t * from.time_stride + row.h / group * from.head_stride + column;
    if (aligned) {
      x = *reinterpret_cast<const Vector<T>*>(source);
    } else {
      for (int i = 0; i < kVector; ++i) x.values[i] = source[i];
    }
  }
  const std::int64_t at = index * kVector;
  *reinterpret_cast<Vector<T>*>(plain + at) = x;
  if (decayed == nullptr) return;
  const Decay* chunk = decays + row.chunk * C;
  const float to_end = factor(chunk[row.i], chunk[C - 1]);
  for (T& value : x.values) value = T(to_end == 0.0f ? 0.0f : static_cast<float>(value) * to_end);
  *reinterpret_cast<Vector<T>*>(decayed + at) = x;
}

/// Step 4: a thread per eight elements of P.
template <typename T>
__global__ void mask_kernel(std::int64_t chunks, T* p, const Decay* decays) {
  const std::int64_t index = thread_index();
  if (index >= chunks * C * C / kVector) return;
  const int first = static_cast<int>(index % (C / kVector)) * kVector;
  const int i = static_cast<int>(index / (C / kVector) % C);
  auto* at = reinterpret_cast<Vector<T>*>(p) + index;
  Vector<T> x = *at;
  const Decay* chunk = decays == nullptr ? nullptr : decays + index / (C * C / kVector) * C;
  for (int j = 0; j < kVector; ++j) {
    float reach = first + j <= i ? 1.0f : 0.0f;
    if (chunk != nullptr && reach != 0.0f) reach = factor(chunk[first + j], chunk[i]);
    x.values[j] = T(reach == 0.0f ? 0.0f : static_cast<float>(x.values[j]) * reach);
  }
  *at = x;
}

/// Step 7: a thread per four elements of one head's state; chunks are fetched kAhead at a time, so
/// that the walk waits for memory once in so many steps.
template <typename T>
__global__ void states_kernel(Shape shape, std::int64_t size, T* states, const Decay* decays,
                              const float* initial_state, float* final_state) {
  constexpr int kWidth = 4, kAhead = 8;
  struct alignas(8) Part {
    T values[kWidth];
  };
  const std::int64_t index = thread_index() * kWidth;
  if (index >= shape.B * shape.H * size) return;
  const std::int64_t head = index / size;
  T* mine = states + head * shape.N * size + index % size;
  const Decay* ends = decays == nullptr ? nullptr : decays + head * shape.N * C + C - 1;
  float state[kWidth];
  for (int i = 0; i < kWidth; ++i) state[i] = initial_state ? initial_state[index + i] : 0.0f;
  for (std::int64_t first = 0; first < shape.N; first += kAhead) {
    Part local[kAhead];
    float keep[kAhead];
#pragma unroll
    for (int n = 0; n < kAhead; ++n) {
      if (first + n >= shape.N) break;
      local[n] = *reinterpret_cast<const Part*>(mine + (first + n) * size);
      keep[n] = ends == nullptr ? 1.0f : factor(ends[(first + n) * C]);
    }
#pragma unroll
    for (int n = 0; n < kAhead; ++n) {
      if (first + n >= shape.N) break;
      Part before;
      for (int i = 0; i < kWidth; ++i) {
        before.values[i] = T(state[i]);
        // why not 0 * state: a state that is forgotten leaves nothing, even inf.
        state[i] =
            (keep[n] == 0.0f ? 0.0f : keep[n] * state[i]) + static_cast<float>(local[n].values[i]);
      }
      *reinterpret_cast<Part*>(mine + (first + n) * size) = before;
    }
  }
  for (int i = 0; final_state && i < kWidth; ++i) final_state[index + i] = state[i];
}

/// Step 9: a thread per eight elements of o.
template <typename T>
__global__ void output_kernel(Shape shape, const T* intra, const T* inter, const Decay* decays,
                              StridedTensor o, int V, bool aligned) {
  const std::int64_t index = thread_index();
  const int vectors = V / kVector;
  if (index >= shape.B * shape.H * shape.N * C * vectors) return;
  const Row row = shape.row(index / vectors);
  if (row.t >= shape.T) return;
  const float reach = decays == nullptr ? 1.0f : factor(decays[row.chunk * C + row.i]);
  Vector<T> x = *(reinterpret_cast<const Vector<T>*>(intra) + index);
  const Vector<T> y = *(reinterpret_cast<const Vector<T>*>(inter) + index);
  for (int i = 0; i < kVector; ++i) {
    const float from_state = reach == 0.0f ? 0.0f : reach * static_cast<float>(y.values[i]);
    x.values[i] = T(static_cast<float>(x.values[i]) + from_state);
  }
  T* to = static_cast<T*>(o.data) + row.b * o.batch_stride + row.t * o.time_stride +
          row.h * o.head_stride + index % vectors * kVector;
  if (aligned) {
    *reinterpret_cast<Vector<T>*>(to) = x;
  } else {
    for (int i = 0; i < kVector; ++i) to[i] = x.values[i];
  }
}

bool aligned(const StridedTensor& x) {
  return reinterpret_cast<std::uintptr_t>(x.data) % 16 == 0 && x.batch_stride % kVector == 0 &&
         x.time_stride % kVector == 0 && x.head_stride % kVector == 0;
}

unsigned blocks(std::int64_t threads) {
  return static_cast<unsigned>((threads + kThreads - 1) / kThreads);
}

/// The intermediates, one after another in the workspace.
struct Intermediates {
  std::size_t decays, q, k, k_decayed, v, p, states, intra, inter, matmul, bytes;

  explicit Intermediates(const GlaForwardProblem& problem) {
    const std::int64_t K = problem.K, V = problem.V;
    const std::int64_t chunks = problem.B * problem.H * cuda::ceil_div(problem.T, C);
    const bool has_decay = problem.log_decay.data != nullptr;
    cuda::WorkspaceLayout layout;
    decays = layout.add(has_decay ? chunks * C * std::int64_t{sizeof(Decay)} : 0);
    q = layout.add(chunks * C * K * 2);
    k = layout.add(chunks * C * K * 2);
    k_decayed = has_decay ? layout.add(chunks * C * K * 2) : k;
    v = layout.add(chunks * C * V * 2);
    p = layout.add(chunks * C * C * 2);
    states = layout.add(chunks * K * V * 2);
    intra = layout.add(chunks * C * V * 2);
    inter = layout.add(chunks * C * V * 2);
    matmul = layout.add(kMatmulWorkspaceBytes);
    bytes = layout.bytes();
  }
};

void check(const GlaForwardProblem& problem) {
  check_baseline(problem);
  if (problem.K % kVector != 0 || problem.V % kVector != 0) {
    throw Unsupported("the unfused baseline needs K and V to be multiples of 8");
  }
}

template <typename T>
void forward(const GlaForwardProblem& call, const cuda::ScratchMemory& scratch,
             cudaStream_t stream) {
  const Intermediates at(call);
  const Shape shape{call.B, call.T, cuda::ceil_div(call.T, C), call.H};
  const std::int64_t chunks = shape.B * shape.H * shape.N;
  const auto part = [&](std::size_t offset) { return scratch.at<T>(offset); };
  auto* decays = call.log_decay.data ? scratch.at<Decay>(at.decays) : nullptr;
  const auto multiply = [&](std::int64_t M, std::int64_t N, std::int64_t inner, float alpha,
                            BatchedOperand a, BatchedOperand b, std::size_t d) {
    bench::multiply({cuda_type(call.dtype), chunks, M, N, inner, alpha, a, b, part(d)},
                    scratch.at<void>(at.matmul), stream);
  };
  const auto by_head = [&](const StridedTensor& from, int heads, int D, T* plain, T* decayed) {
    by_head_kernel<T><<<blocks(chunks * C * D / kVector), kThreads, 0, stream>>>(
        shape, from, call.H / heads, D, aligned(from), plain, decayed, decays);
  };
  const std::int64_t size = std::int64_t{call.K} * call.V;
  const auto walk_states = [&] {
    states_kernel<T><<<blocks(shape.B * shape.H * size / 4), kThreads, 0, stream>>>(
        shape, size, part(at.states), decays, call.initial_state, call.final_state);
  };
  if (shape.B == 0) return;
  if (chunks == 0) {
    if (call.final_state) walk_states();
    cuda::cuda_check(cudaGetLastError(), kName);
    return;
  }
  if (decays) {
    decays_kernel<<<blocks(chunks), kThreads, 0, stream>>>(shape, call.log_decay, decays);
  }
  by_head(call.q, call.HQ, call.K, part(at.q), nullptr);
  by_head(call.k, call.HQ, call.K, part(at.k), decays ? part(at.k_decayed) : nullptr);
  by_head(call.v, call.H, call.V, part(at.v), nullptr);
  multiply(C, C, call.K, call.scale, {part(at.q)}, {part(at.k), true}, at.p);
  mask_kernel<T>
      <<<blocks(chunks * C * C / kVector), kThreads, 0, stream>>>(chunks, part(at.p), decays);
  multiply(C, call.V, C, 1.0f, {part(at.p)}, {part(at.v)}, at.intra);
  multiply(call.K, call.V, C, 1.0f, {part(at.k_decayed), true}, {part(at.v)}, at.states);
  walk_states();
  multiply(C, call.V, call.K, call.scale, {part(at.q)}, {part(at.states)}, at.inter);
  output_kernel<T><<<blocks(chunks * C * call.V / kVector), kThreads, 0, stream>>>(
      shape, part(at.intra), part(at.inter), decays, call.o, call.V, aligned(call.o));
  cuda::cuda_check(cudaGetLastError(), kName);
}

}  // namespace

void unfused_gla(const GlaForwardProblem& problem, const Context& context) {
  check(problem);
  const cuda::DeviceGuard guard(problem.device.index);
  const cuda::ScratchMemory scratch(kName, context, Intermediates(problem).bytes);
  const auto run = problem.dtype == DType::kBFloat16 ? forward<__nv_bfloat16> : forward<__half>;
  run(problem, scratch, static_cast<cudaStream_t>(context.stream.handle));
}

std::size_t unfused_gla_workspace_bytes(const GlaForwardProblem& problem) {
  check(problem);
  return Intermediates(problem).bytes;
}

}  // namespace tandem::bench
