// What the roles of gla_forward_kernel share: shared memory, and the tokens that a CTA walks.
#pragma once

#include "cuda/gla/forward_config.h"
#include "cuda/gla/forward_params.h"
#include "cuda/parts/decay.cuh"
#include "cuda/parts/panel.cuh"
#include "cuda/parts/ring.cuh"

namespace tandem::cuda {

template <class Config>
struct ForwardShared {
  struct Stage {
    alignas(1024) char q[Config::kKeyBytes];    // [C,K]
    alignas(1024) char k[Config::kKeyBytes];    // [C,K]
    alignas(1024) char v[Config::kValueBytes];  // [C,V]
  };
  using InputRing = Ring<Config::kStages>;
  using IntraRing = Ring<Config::kIntraStages>;

  Stage stages[Config::kStages];
  alignas(1024) char p[Config::kIntraStages][panel_bytes(Config::kChunk)];  // [C,C]
  alignas(1024) char o[Config::kStateGroups][panel_bytes(Config::kChunk)];  // [C,64]
  ChunkDecay<Config::kChunk> decay[Config::kStages];
  InputRing input;
  IntraRing intra;
};

/// The tokens of one (sequence, head).
struct Span {
  int batch;
  int head;
  std::int64_t sequence_head;  // index into [N,H]
  std::int64_t begin;
  std::int64_t length;

  template <class Config>
  __device__ int chunks() const {
    return static_cast<int>((length + Config::kChunk - 1) / Config::kChunk);
  }
  __device__ int valid_tokens(int chunk, int chunk_size) const {
    return static_cast<int>(
        min(length - std::int64_t{chunk} * chunk_size, std::int64_t{chunk_size}));
  }
};

__device__ inline std::int64_t clamped_boundary(const GlaForwardProblem& problem, std::int64_t n) {
  return min(max(std::int64_t{problem.cu_seqlens[n]}, std::int64_t{0}), problem.T);
}

__device__ inline Span find_span(const GlaForwardProblem& problem) {
  const std::int64_t n = blockIdx.x / problem.H;
  Span span{0, static_cast<int>(blockIdx.x % problem.H), blockIdx.x, 0, 0};
  if (problem.cu_seqlens == nullptr) {
    span.batch = static_cast<int>(n);
    span.length = problem.T;
  } else if (n < problem.N) {
    span.begin = clamped_boundary(problem, n);
    span.length = max(clamped_boundary(problem, n + 1) - span.begin, std::int64_t{0});
  }
  return span;
}

template <class Element>
__device__ inline Element* token_row(const StridedTensor& tensor, int batch, std::int64_t time,
                                     int head) {
  return static_cast<Element*>(tensor.data) + batch * tensor.batch_stride +
         time * tensor.time_stride + head * tensor.head_stride;
}

}  // namespace tandem::cuda
