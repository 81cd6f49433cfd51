// What one CTA walks at a time: the tokens of one head, in chunks, and the states at both ends.
//
// A gradient's walk runs from the last token to the first (Config::kReverse). Chunks are then
// numbered from the last one on, so that roles count upwards in either case; only where a chunk
// lies in time differs.
#pragma once

#include "cuda/gla/common/segments.h"
#include "ops/gla_problem.h"

namespace tandem::cuda::gla {

/// Tokens [begin, begin + length) of one head and some columns of V; T < 2^31 - 64.
struct Item {
  static constexpr int kNone = -1;

  int batch = kNone;  // kNone: there are no more items
  int head = 0;
  int last_head = 0;     // of those walked together, from `head` on
  int first_column = 0;  // of V
  int sequence = 0;
  int segment = 0;         // of the sequence, where it is split; in the order of the walk
  int segments = 1;        // of the sequence
  int earlier_chunks = 0;  // of the segment before it, in the order of the walk
  int begin = 0;
  int length = 0;
  int before = 0;                        // tokens of the sequence before `begin`
  int left = 0;                          // tokens of the sequence from `begin` on
  const float* initial_state = nullptr;  // where the walk begins, [K,V]; null: 0
  float* final_state = nullptr;          // where it ends, [K,V]; null: not wanted
  // Of each warp of the state role: set when the initial state is there, to be set when the final
  // one is; null: nobody waits.
  std::uint32_t* begin_ready = nullptr;
  std::uint32_t* end_ready = nullptr;

  /// The head that a state warpgroup walks; the last one's again where there is none for it.
  template <class Config>
  __device__ int head_of(int warpgroup) const {
    return Config::kHeads > 1 ? min(head + warpgroup, last_head) : head;
  }
  template <class Config>
  __device__ bool has_head(int warpgroup) const {
    return Config::kHeads == 1 || head + warpgroup <= last_head;
  }
  /// The first of the columns of V that a state warpgroup walks.
  template <class Config>
  __device__ int column_of(int warpgroup) const {
    return first_column + (Config::kHeads > 1 ? 0 : 64 * warpgroup);
  }
  template <class Config>
  __device__ int chunks() const {
    return (length + Config::kChunk - 1) / Config::kChunk;
  }
  /// Tokens from the item's begin to the chunk.
  template <class Config>
  __device__ int chunk_offset(int chunk) const {
    return (Config::kReverse ? chunks<Config>() - 1 - chunk : chunk) * Config::kChunk;
  }
  template <class Config>
  __device__ int chunk_begin(int chunk) const {
    return begin + chunk_offset<Config>(chunk);
  }
  /// Tokens of the sequence in the chunk, which may be one before the item.
  template <class Config>
  __device__ int valid_tokens(int chunk) const {
    return min(left - chunk_offset<Config>(chunk), Config::kChunk);
  }
};

/// Returns a boundary of cu_seqlens, clamped into [0,T].
__device__ inline int clamped_boundary(const std::int32_t* cu_seqlens, std::int64_t n,
                                       std::int64_t T) {
  return min(max(cu_seqlens[n], 0), static_cast<int>(T));
}

/// Returns the first of `count` boundaries that lies at token `time` or behind it; `count` without
/// one.
__device__ inline std::int64_t first_boundary_from(const std::int32_t* cu_seqlens,
                                                   std::int64_t count, std::int64_t time) {
  std::int64_t first = 0, last = count;
  while (first < last) {
    const std::int64_t middle = (first + last) / 2;
    if (cu_seqlens[middle] < time) {
      first = middle + 1;
    } else {
      last = middle;
    }
  }
  return first;
}

/// Sets the tokens of sequence n: all T of batch n, or what cu_seqlens says.
template <class Problem>
__device__ void set_sequence(Item& item, const Problem& problem, std::int64_t n) {
  item.sequence = static_cast<int>(n);
  if (problem.cu_seqlens == nullptr) {
    item.batch = item.sequence;
    item.begin = 0;
    item.length = static_cast<int>(problem.T);
  } else {
    item.batch = 0;
    item.begin = clamped_boundary(problem.cu_seqlens, n, problem.T);
    item.length = max(clamped_boundary(problem.cu_seqlens, n + 1, problem.T) - item.begin, 0);
  }
  item.before = 0;
  item.left = item.length;
}

/// Keeps chunks [first, last) of the item, in time.
template <class Config>
__device__ void keep_chunks(Item& item, int first, int last) {
  const int begin = min(first * Config::kChunk, item.length);
  item.length = min(last * Config::kChunk, item.length) - begin;
  item.begin += begin;
  item.before = begin;
  item.left -= begin;
}

/// Keeps segment `index`, in the order of the walk, of the item's tokens, cut into `segments`.
/// `chained`: segment_begin_chunk's.
template <class Config>
__device__ void keep_segment(Item& item, int index, int segments, bool chained) {
  const int chunks = item.chunks<Config>();
  const int first = segment_begin_chunk(chunks, segments, index, chained);
  const int last = segment_begin_chunk(chunks, segments, index + 1, chained);
  keep_chunks<Config>(item, Config::kReverse ? chunks - last : first,
                      Config::kReverse ? chunks - first : last);
  if (index > 0) {
    item.earlier_chunks = first - segment_begin_chunk(chunks, segments, index - 1, chained);
  }
}

/// Returns the factor of an item's first token, 1 without one: what a reverse walk leaves to be
/// applied.
__device__ inline float first_factor(const DecayTensor& decay, const Item& item) {
  if (decay.data == nullptr || item.length == 0) return 1.0f;
  return expf(decay.data[item.batch * decay.batch_stride + item.begin * decay.time_stride +
                         item.head * decay.head_stride]);
}

template <class Element>
__device__ inline Element* token_row(const StridedTensor& tensor, int batch, std::int64_t time,
                                     int head) {
  return static_cast<Element*>(tensor.data) + batch * tensor.batch_stride +
         time * tensor.time_stride + head * tensor.head_stride;
}

}  // namespace tandem::cuda::gla
