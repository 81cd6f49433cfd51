// What one CTA walks at a time: the tokens of one head, in chunks, and the states at both ends.
#pragma once

#include "cuda/gla/segments.h"
#include "ops/gla.h"

namespace tandem::cuda {

/// Tokens [begin, begin + length) of one head and some columns of V; T < 2^31 - 64.
struct Item {
  static constexpr int kNone = -1;

  int batch = kNone;  // kNone: there are no more items
  int head = 0;
  int first_column = 0;  // of V
  int segment = 0;       // of the sequence, where it is split
  int begin = 0;
  int length = 0;
  const float* initial_state = nullptr;  // [K,V]; null: 0
  float* final_state = nullptr;          // [K,V]; null: not wanted

  template <class Config>
  __device__ int chunks() const {
    return (length + Config::kChunk - 1) / Config::kChunk;
  }
  __device__ int valid_tokens(int chunk, int chunk_size) const {
    return min(length - chunk * chunk_size, chunk_size);
  }
};

/// A boundary of cu_seqlens, clamped into [0,T].
__device__ inline int clamped_boundary(const std::int32_t* cu_seqlens, std::int64_t n,
                                       std::int64_t T) {
  return min(max(cu_seqlens[n], 0), static_cast<int>(T));
}

/// Sets the tokens of sequence n: all T of batch n, or what cu_seqlens says.
template <class Problem>
__device__ void set_sequence(Item& item, const Problem& problem, std::int64_t n) {
  if (problem.cu_seqlens == nullptr) {
    item.batch = static_cast<int>(n);
    item.begin = 0;
    item.length = static_cast<int>(problem.T);
  } else {
    item.batch = 0;
    item.begin = clamped_boundary(problem.cu_seqlens, n, problem.T);
    item.length = max(clamped_boundary(problem.cu_seqlens, n + 1, problem.T) - item.begin, 0);
  }
}

/// Keeps segment `index` of the item's tokens, cut into `segments` (cuda/gla/segments.h).
__device__ inline void keep_segment(Item& item, int index, int segments) {
  const int begin = segment_begin(item.length, segments, index);
  item.length = segment_begin(item.length, segments, index + 1) - begin;
  item.begin += begin;
}

template <class Element>
__device__ inline Element* token_row(const StridedTensor& tensor, int batch, std::int64_t time,
                                     int head) {
  return static_cast<Element*>(tensor.data) + batch * tensor.batch_stride +
         time * tensor.time_stride + head * tensor.head_stride;
}

}  // namespace tandem::cuda
