// attention forward, unfused: three kernels, as one would write it by products; attention_weights
// the first two of them.
//
//   S = scale q k^T       cuBLASLt, per batch row and head, fp32 sums rounded to 16 bits
//   P = softmax(S)        a CTA per row, in place; with a causal mask or a window, 0 outside
//   o = P v               cuBLASLt
//
// attention_weights backward: dS = w (.) (dw - sum w dw), a CTA per row; dq = dS k and dk = dSt q.
//
// Products want each head's rows one behind the other: where q, k, v or o lie otherwise ([B,T,H,D]
// with several heads), they are copied, a kernel each.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <initializer_list>

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

/// A CTA per row of weights and their gradients [B,H,TQ,TK]: the gradient by the scores, which is 0
/// where a query does not see a key.
template <typename T>
__global__ void __launch_bounds__(kThreads)
    softmax_gradient_kernel(const T* weights, const T* d_weights, T* d_scores, SeenKeys seen) {
  const std::int64_t row = blockIdx.x, query = row % seen.TQ;
  const auto for_vectors = [&](const auto& call) {
    for (std::int64_t j = threadIdx.x * kVector; j < seen.TK; j += kThreads * kVector) {
      const auto w = *reinterpret_cast<const Part<T>*>(weights + row * seen.TK + j);
      const auto d_w = *reinterpret_cast<const Part<T>*>(d_weights + row * seen.TK + j);
      call(j, reinterpret_cast<const T*>(&w), reinterpret_cast<const T*>(&d_w));
    }
  };
  float mean = 0;
  for_vectors([&](std::int64_t j, const T* w, const T* d_w) {
    for (int i = 0; i < kVector; ++i) {
      if (seen.sees(query, j + i)) mean += static_cast<float>(w[i]) * static_cast<float>(d_w[i]);
    }
  });
  mean = over_block(mean, [](float a, float b) { return a + b; });
  for_vectors([&](std::int64_t j, const T* w, const T* d_w) {
    Part<T> result;
    T* const d_s = reinterpret_cast<T*>(&result);
    for (int i = 0; i < kVector; ++i) {
      const float d_score = static_cast<float>(w[i]) * (static_cast<float>(d_w[i]) - mean);
      d_s[i] = T(seen.sees(query, j + i) ? d_score : 0.0f);
    }
    *reinterpret_cast<Part<T>*>(d_scores + row * seen.TK + j) = result;
  });
}

/// What the products of one call take: each head's rows one behind the other, by a copy where they
/// lie otherwise.
template <typename T>
struct Products {
  const AttentionSizes& sizes;
  void* matmul_workspace;
  cudaStream_t stream;

  std::int64_t heads() const { return sizes.B * sizes.H; }

  /// Whether rows lie as a copy would have them.
  bool is_by_head(const StridedTensor& x, std::int64_t tokens, int share, int D) const {
    return share == 1 && x.time_stride == D && (sizes.H == 1 || x.head_stride == tokens * D) &&
           (sizes.B == 1 || x.batch_stride == sizes.H * tokens * D);
  }

  void copy(const StridedTensor& x, T* by_head, std::int64_t tokens, int share, int D,
            bool back) const {
    const std::int64_t threads = heads() * tokens * (D / kVector);
    if (threads == 0) return;
    by_head_kernel<T>
        <<<static_cast<unsigned>(cuda::ceil_div(threads, kThreads)), kThreads, 0, stream>>>(
            x, by_head, sizes.B, tokens, sizes.H, share, D, back);
  }

  /// `share`: how many heads read one of the tensor's.
  const T* by_head(const StridedTensor& x, T* room, std::int64_t tokens, int share, int D) const {
    if (is_by_head(x, tokens, share, D)) return static_cast<const T*>(x.data);
    copy(x, room, tokens, share, D, false);
    return room;
  }

  void multiply(std::int64_t N, std::int64_t inner, float alpha, BatchedOperand a, BatchedOperand b,
                T* d) const {
    bench::multiply({cuda_type(sizes.dtype), heads(), sizes.TQ, N, inner, alpha, a, b, d},
                    matmul_workspace, stream);
  }

  /// weights [B,H,TQ,TK], and the log-sum-exp where it is wanted.
  void make_weights(const T* q, const T* k, T* weights, float* log_sum_exp) const {
    if (sizes.TK > 0) multiply(sizes.TK, sizes.K, sizes.scale, {q}, {k, true}, weights);
    softmax_kernel<T><<<static_cast<unsigned>(heads() * sizes.TQ), kThreads, 0, stream>>>(
        weights, log_sum_exp, {sizes.TQ, sizes.TK, sizes.mask.left, sizes.mask.right});
  }
};

/// The intermediates, one after another in the workspace.
struct Intermediates {
  std::size_t q, k, v = 0, weights = 0, o = 0, matmul, bytes;

  /// Those of attention, or of its weights alone, which are the output.
  Intermediates(const AttentionSizes& p, bool of_weights) {
    const std::int64_t heads = p.B * p.H;
    cuda::WorkspaceLayout layout;
    q = layout.add(heads * p.TQ * p.K * 2);
    k = layout.add(heads * p.TK * p.K * 2);
    if (!of_weights) {
      v = layout.add(heads * p.TK * p.V * 2);
      weights = layout.add(heads * p.TQ * p.TK * 2);
      o = layout.add(heads * p.TQ * p.V * 2);
    }
    matmul = layout.add(kMatmulWorkspaceBytes);
    bytes = layout.bytes();
  }
};

bool aligned(const StridedTensor& x) {
  return reinterpret_cast<std::uintptr_t>(x.data) % 16 == 0 && x.batch_stride % kVector == 0 &&
         x.time_stride % kVector == 0 && x.head_stride % kVector == 0;
}

void check(const AttentionSizes& p, std::initializer_list<const StridedTensor*> tensors) {
  check_baseline(p);
  if (p.cu_seqlens_q != nullptr || p.lengths_k != nullptr) {
    throw Unsupported("the unfused baseline is for dense batches, not for cu_seqlens or lengths_k");
  }
  if (p.K % kVector != 0 || p.V % kVector != 0 || p.TK % kVector != 0) {
    throw Unsupported("the unfused baseline needs K, V and TK to be multiples of 8");
  }
  for (const StridedTensor* x : tensors) {
    if (!aligned(*x)) {
      throw Unsupported("the unfused baseline needs rows to begin at multiples of 16 bytes");
    }
  }
  if (p.B * p.H * p.TQ > cuda::kMaxIndex) {
    throw Unsupported("the unfused baseline takes fewer than 2^31 queries in all heads");
  }
}

void check_without_gaps(const char* name, const StridedTensor& w, const AttentionSizes& p) {
  if (w.time_stride != p.TK || w.head_stride != p.TQ * p.TK ||
      w.batch_stride != p.H * p.TQ * p.TK) {
    throw Unsupported("the unfused baseline needs " + std::string(name) + " to have no gaps");
  }
}

void check(const AttentionForwardProblem& p) { check(p, {&p.q, &p.k, &p.v, &p.o}); }

void check(const AttentionWeightsForwardProblem& p) {
  check(p, {&p.q, &p.k});
  check_without_gaps("w", p.w, p);
}

void check(const AttentionWeightsBackwardProblem& p) {
  const AttentionWeightsForwardProblem& forward = p.forward;
  check(forward);
  check(forward, {&p.dq, &p.dk});
  check_without_gaps("d_w", p.d_w, forward);
  if (forward.H != forward.HKV) {
    throw Unsupported("the unfused baseline's gradients are for as many heads of k as of q");
  }
  if (forward.B * forward.H * forward.TQ * forward.TK == 0) {
    throw Unsupported("the unfused baseline's gradients are for weights that there are");
  }
}

template <typename T>
void forward(const AttentionForwardProblem& p, const cuda::ScratchMemory& scratch,
             cudaStream_t stream) {
  const Intermediates at(p, false);
  const Products<T> products{p, scratch.at<void>(at.matmul), stream};
  if (products.heads() * p.TQ == 0) return;
  const int share = p.H / p.HKV;
  const T* q = products.by_head(p.q, scratch.at<T>(at.q), p.TQ, 1, p.K);
  const T* k = products.by_head(p.k, scratch.at<T>(at.k), p.TK, share, p.K);
  const T* v = products.by_head(p.v, scratch.at<T>(at.v), p.TK, share, p.V);
  T* weights = scratch.at<T>(at.weights);
  const bool in_place = products.is_by_head(p.o, p.TQ, 1, p.V);
  T* o = in_place ? static_cast<T*>(p.o.data) : scratch.at<T>(at.o);
  products.make_weights(q, k, weights, p.log_sum_exp);
  if (p.TK > 0) {
    products.multiply(p.V, p.TK, 1.0f, {weights}, {v}, o);
  } else {
    const std::size_t bytes = products.heads() * p.TQ * p.V * sizeof(T);
    cuda::cuda_check(cudaMemsetAsync(o, 0, bytes, stream), kName);
  }
  if (!in_place) products.copy(p.o, o, p.TQ, 1, p.V, true);
  cuda::cuda_check(cudaGetLastError(), kName);
}

template <typename T>
void forward(const AttentionWeightsForwardProblem& p, const cuda::ScratchMemory& scratch,
             cudaStream_t stream) {
  const Intermediates at(p, true);
  const Products<T> products{p, scratch.at<void>(at.matmul), stream};
  if (products.heads() * p.TQ * p.TK == 0) return;
  const T* q = products.by_head(p.q, scratch.at<T>(at.q), p.TQ, 1, p.K);
  const T* k = products.by_head(p.k, scratch.at<T>(at.k), p.TK, p.H / p.HKV, p.K);
  products.make_weights(q, k, static_cast<T*>(p.w.data), nullptr);
  cuda::cuda_check(cudaGetLastError(), kName);
}

/// The intermediates of a backward.
struct GradientIntermediates {
  std::size_t q, k, dq, dk, d_scores, matmul, bytes;

  explicit GradientIntermediates(const AttentionSizes& p) {
    const std::int64_t heads = p.B * p.H;
    cuda::WorkspaceLayout layout;
    q = layout.add(heads * p.TQ * p.K * 2);
    k = layout.add(heads * p.TK * p.K * 2);
    dq = layout.add(heads * p.TQ * p.K * 2);
    dk = layout.add(heads * p.TK * p.K * 2);
    d_scores = layout.add(heads * p.TQ * p.TK * 2);
    matmul = layout.add(kMatmulWorkspaceBytes);
    bytes = layout.bytes();
  }
};

template <typename T>
void backward(const AttentionWeightsBackwardProblem& problem, const cuda::ScratchMemory& scratch,
              cudaStream_t stream) {
  const AttentionWeightsForwardProblem& p = problem.forward;
  const GradientIntermediates at(p);
  void* const room = scratch.at<void>(at.matmul);
  const Products<T> products{p, room, stream};
  const std::int64_t heads = products.heads();
  T* const d_scores = scratch.at<T>(at.d_scores);
  softmax_gradient_kernel<T><<<static_cast<unsigned>(heads * p.TQ), kThreads, 0, stream>>>(
      static_cast<const T*>(p.w.data), static_cast<const T*>(problem.d_w.data), d_scores,
      {p.TQ, p.TK, p.mask.left, p.mask.right});
  const auto gradient = [&](const StridedTensor& to, std::size_t copy, std::int64_t tokens,
                            std::int64_t others, BatchedOperand a, const T* b) {
    if (to.data == nullptr) return;
    const bool in_place = products.is_by_head(to, tokens, 1, p.K);
    T* const d = in_place ? static_cast<T*>(to.data) : scratch.at<T>(copy);
    bench::multiply({cuda_type(p.dtype), heads, tokens, p.K, others, p.scale, a, {b}, d}, room,
                    stream);
    if (!in_place) products.copy(to, d, tokens, 1, p.K, true);
  };
  gradient(problem.dq, at.dq, p.TQ, p.TK, {d_scores},
           products.by_head(p.k, scratch.at<T>(at.k), p.TK, 1, p.K));
  gradient(problem.dk, at.dk, p.TK, p.TQ, {d_scores, true},
           products.by_head(p.q, scratch.at<T>(at.q), p.TQ, 1, p.K));
  cuda::cuda_check(cudaGetLastError(), kName);
}

template <class Problem>
void run(const Problem& problem, const Context& context, bool of_weights) {
  check(problem);
  const cuda::DeviceGuard guard(problem.device.index);
  const cuda::ScratchMemory scratch(kName, context, Intermediates(problem, of_weights).bytes);
  const auto stream = static_cast<cudaStream_t>(context.stream.handle);
  if (problem.dtype == DType::kBFloat16) {
    forward<__nv_bfloat16>(problem, scratch, stream);
  } else {
    forward<__half>(problem, scratch, stream);
  }
}

}  // namespace

void unfused_attention(const AttentionForwardProblem& problem, const Context& context) {
  run(problem, context, false);
}

std::size_t unfused_attention_workspace_bytes(const AttentionForwardProblem& problem) {
  check(problem);
  return Intermediates(problem, false).bytes;
}

void unfused_attention_weights(const AttentionWeightsForwardProblem& problem,
                               const Context& context) {
  run(problem, context, true);
}

std::size_t unfused_attention_weights_workspace_bytes(
    const AttentionWeightsForwardProblem& problem) {
  check(problem);
  return Intermediates(problem, true).bytes;
}

void unfused_attention_weights_backward(const AttentionWeightsBackwardProblem& problem,
                                        const Context& context) {
  check(problem);
  const AttentionSizes& p = problem.forward;
  const cuda::DeviceGuard guard(p.device.index);
  const cuda::ScratchMemory scratch(kName, context, GradientIntermediates(p).bytes);
  const auto stream = static_cast<cudaStream_t>(context.stream.handle);
  if (p.dtype == DType::kBFloat16) {
    backward<__nv_bfloat16>(problem, scratch, stream);
  } else {
    backward<__half>(problem, scratch, stream);
  }
}

std::size_t unfused_attention_weights_backward_workspace_bytes(
    const AttentionWeightsBackwardProblem& problem) {
  check(problem);
  return GradientIntermediates(problem.forward).bytes;
}

}  // namespace tandem::bench
