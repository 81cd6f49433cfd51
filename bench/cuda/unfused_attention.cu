// attention forward, unfused: three kernels, as one would write it by products.
//
//   S = scale q k^T       cuBLASLt, per batch row and head, fp32 sums rounded to 16 bits
//   P = softmax(S)        a CTA per row, in place; with a causal mask or a window, 0 outside
//   o = P v               cuBLASLt
//
// Products want each head's rows one behind the other: where q, k, v or o lie otherwise ([B,T,H,D]
// with several heads), they are copied, a kernel each.
#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "batched_matmul.h"
#include "bench/cuda/unfused.h"
#include "bench/cuda/unfused_rows.cuh"
#include "cuda/runtime/plan.h"
#include "cuda/runtime/workspace.h"

namespace tandem::bench {
namespace {

using namespace rows;

constexpr const char* kName = "unfused attention";  // in errors
constexpr int kWarps = kThreads / 32;

/// Copies [B,T,heads,D] to [B,H,T,D] (heads of keys to each head that reads them), or back.
template <typename T>
__global__ void __launch_bounds__(kThreads)
    by_head_kernel(StridedTensor tensor, T* by_head, std::int64_t B, std::int64_t tokens, int H,
                   int share, int D, bool back) {
  const std::int64_t index = std::int64_t{blockIdx.x} * kThreads + threadIdx.x;
  const int vectors = D / kVector;
  if (index >= B * H * tokens * vectors) return;
  const std::int64_t row = index / vectors;
  const std::int64_t t = row % tokens, h = row / tokens % H, b = row / tokens / H;
  T* const strided = static_cast<T*>(tensor.data) + b * tensor.batch_stride +
                     t * tensor.time_stride + h / share * tensor.head_stride +
                     index % vectors * kVector;
  T* const dense = by_head + index * kVector;
  *reinterpret_cast<Part<T>*>(back ? strided : dense) =
      *reinterpret_cast<const Part<T>*>(back ? dense : strided);
}

/// The mask of one call.
struct SeenKeys {
  std::int64_t TQ, TK, left, right;  // of a query at its place; -1: no end

  __device__ bool sees(std::int64_t query, std::int64_t key) const {
    const std::int64_t place = query + TK - TQ;
    return (left < 0 || key >= place - left) && (right < 0 || key <= place + right);
  }
};

/// Combines a value of each thread of a CTA.
template <class Combine>
__device__ float over_block(float value, const Combine& combine) {
  __shared__ float of_warp[kWarps];
  for (int distance = 16; distance > 0; distance /= 2) {
    value = combine(value, __shfl_xor_sync(kWholeWarp, value, distance));
  }
  __syncthreads();  // before the last call's values are overwritten
  if (threadIdx.x % 32 == 0) of_warp[threadIdx.x / 32] = value;
  __syncthreads();
  value = of_warp[0];
  for (int warp = 1; warp < kWarps; ++warp) value = combine(value, of_warp[warp]);
  return value;
}

/// A CTA per row of scores [B,H,TQ,TK].
template <typename T>
__global__ void __launch_bounds__(kThreads)
    softmax_kernel(T* scores, float* log_sum_exp, SeenKeys seen) {
  const std::int64_t row = blockIdx.x, query = row % seen.TQ;
  T* const s = scores + row * seen.TK;
  const auto score = [&](std::int64_t j) {
    return seen.sees(query, j) ? static_cast<float>(s[j]) : -INFINITY;
  };
  float most = -INFINITY;
  for (std::int64_t j = threadIdx.x; j < seen.TK; j += kThreads) most = fmaxf(most, score(j));
  most = over_block(most, [](float a, float b) { return fmaxf(a, b); });
  const float shift = most == -INFINITY ? 0.0f : most;
  float sum = 0;
  for (std::int64_t j = threadIdx.x; j < seen.TK; j += kThreads) sum += expf(score(j) - shift);
  sum = over_block(sum, [](float a, float b) { return a + b; });
  const float factor = sum == 0.0f ? 0.0f : 1.0f / sum;
  for (std::int64_t j = threadIdx.x; j < seen.TK; j += kThreads) {
    s[j] = T(expf(score(j) - shift) * factor);
  }
  if (log_sum_exp != nullptr && threadIdx.x == 0) log_sum_exp[row] = most + logf(sum);
}

/// The intermediates, one after another in the workspace.
struct Intermediates {
  std::size_t q, k, v, scores, o, matmul, bytes;

  explicit Intermediates(const AttentionForwardProblem& p) {
    const std::int64_t heads = p.B * p.H;
    cuda::WorkspaceLayout layout;
    q = layout.add(heads * p.TQ * p.K * 2);
    k = layout.add(heads * p.TK * p.K * 2);
    v = layout.add(heads * p.TK * p.V * 2);
    scores = layout.add(heads * p.TQ * p.TK * 2);
    o = layout.add(heads * p.TQ * p.V * 2);
    matmul = layout.add(kMatmulWorkspaceBytes);
    bytes = layout.bytes();
  }
};

bool aligned(const StridedTensor& x) {
  return reinterpret_cast<std::uintptr_t>(x.data) % 16 == 0 && x.batch_stride % kVector == 0 &&
         x.time_stride % kVector == 0 && x.head_stride % kVector == 0;
}

void check(const AttentionForwardProblem& p) {
  check_baseline(p);
  if (p.cu_seqlens_q != nullptr || p.lengths_k != nullptr) {
    throw Unsupported("the unfused baseline is for dense batches, not for cu_seqlens or lengths_k");
  }
  if (p.K % kVector != 0 || p.V % kVector != 0 || p.TK % kVector != 0) {
    throw Unsupported("the unfused baseline needs K, V and TK to be multiples of 8");
  }
  for (const StridedTensor* x : {&p.q, &p.k, &p.v, &p.o}) {
    if (!aligned(*x)) {
      throw Unsupported("the unfused baseline needs rows to begin at multiples of 16 bytes");
    }
  }
  if (p.B * p.H * p.TQ > cuda::kMaxIndex) {
    throw Unsupported("the unfused baseline takes fewer than 2^31 queries in all heads");
  }
}

/// Whether each head's rows lie one behind the other, and heads behind those, as a copy would.
bool is_by_head(const StridedTensor& x, std::int64_t B, std::int64_t T, int heads, int share,
                int D) {
  return share == 1 && x.time_stride == D && (heads == 1 || x.head_stride == T * D) &&
         (B == 1 || x.batch_stride == heads * T * D);
}

template <typename T>
void forward(const AttentionForwardProblem& p, const cuda::ScratchMemory& scratch,
             cudaStream_t stream) {
  const Intermediates at(p);
  const std::int64_t heads = p.B * p.H;
  if (heads * p.TQ == 0) return;
  const auto copy = [&](const StridedTensor& x, T* by_head, std::int64_t tokens, int share, int D,
                        bool back) {
    const std::int64_t threads = heads * tokens * (D / kVector);
    if (threads == 0) return;
    by_head_kernel<T>
        <<<static_cast<unsigned>(cuda::ceil_div(threads, kThreads)), kThreads, 0, stream>>>(
            x, by_head, p.B, tokens, p.H, share, D, back);
  };
  const auto dense = [&](const StridedTensor& x, std::size_t place, std::int64_t tokens, int share,
                         int D) -> const T* {
    if (is_by_head(x, p.B, tokens, p.H, share, D)) return static_cast<const T*>(x.data);
    T* to = scratch.at<T>(place);
    copy(x, to, tokens, share, D, false);
    return to;
  };
  const auto multiply = [&](std::int64_t N, std::int64_t inner, float alpha, BatchedOperand a,
                            BatchedOperand b, T* d) {
    bench::multiply({cuda_type(p.dtype), heads, p.TQ, N, inner, alpha, a, b, d},
                    scratch.at<void>(at.matmul), stream);
  };
  const int share = p.H / p.HKV;
  const T* q = dense(p.q, at.q, p.TQ, 1, p.K);
  const T* k = dense(p.k, at.k, p.TK, share, p.K);
  const T* v = dense(p.v, at.v, p.TK, share, p.V);
  T* scores = scratch.at<T>(at.scores);
  const bool in_place = is_by_head(p.o, p.B, p.TQ, p.H, 1, p.V);
  T* o = in_place ? static_cast<T*>(p.o.data) : scratch.at<T>(at.o);
  if (p.TK > 0) multiply(p.TK, p.K, p.scale, {q}, {k, true}, scores);
  softmax_kernel<T><<<static_cast<unsigned>(heads * p.TQ), kThreads, 0, stream>>>(
      scores, p.log_sum_exp, {p.TQ, p.TK, p.mask.left, p.mask.right});
  if (p.TK > 0) {
    multiply(p.V, p.TK, 1.0f, {scores}, {v}, o);
  } else {
    cuda::cuda_check(cudaMemsetAsync(o, 0, heads * p.TQ * p.V * sizeof(T), stream), kName);
  }
  if (!in_place) copy(p.o, o, p.TQ, 1, p.V, true);
  cuda::cuda_check(cudaGetLastError(), kName);
}

}  // namespace

void unfused_attention(const AttentionForwardProblem& problem, const Context& context) {
  check(problem);
  const cuda::DeviceGuard guard(problem.device.index);
  const cuda::ScratchMemory scratch(kName, context, Intermediates(problem).bytes);
  const auto run = problem.dtype == DType::kBFloat16 ? forward<__nv_bfloat16> : forward<__half>;
  run(problem, scratch, static_cast<cudaStream_t>(context.stream.handle));
}

std::size_t unfused_attention_workspace_bytes(const AttentionForwardProblem& problem) {
  check(problem);
  return Intermediates(problem).bytes;
}

}  // namespace tandem::bench
