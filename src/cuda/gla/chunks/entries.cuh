// gla_chunk_entries_kernel: where sequences have more than two segments, what comes from those
// before is added to the states of each.
//
// With what gla_chunk_states_kernel leaves where segments end, counted along the walk,
//   entry_n = added_{n-1} + factor_{n-1} (added_{n-2} + factor_{n-2} (...))
//   state of a pair += factor from its segment's begin * entry_n
// in fp32, rounded once. What is forgotten, by a factor of 0, is neither read nor added. A CTA
// takes a slice of all states of a head and direction, a warp the slice of a segment's.
#pragma once

#include "cuda/gla/chunks/params.h"
#include "cuda/parts/eight.cuh"
#include "cuda/parts/panel.cuh"
#include "cuda/parts/stream_order.cuh"

namespace tandem::cuda::gla {

template <class Element>
struct ChunkEntries {
  static constexpr int kMostWarps = 16;
  static constexpr int kElements = 8 * 32;  // of a slice, eight of a lane
  static constexpr int kSlices = 64 * 64 / kElements;
  static constexpr int kEndsTogether = 4;  // that are read
  static constexpr int kStatesTogether = 4;

  const ChunkBackwardParams& params;
  bool reverse;
  int sequence_head;
  int element;  // the lane's first, [V,K]

  /// Of segment number n along the walk.
  __device__ int segment(int n) const { return reverse ? params.segments - 1 - n : n; }
  __device__ const SegmentEnd& end(int n) const {
    const std::int64_t walk = 2 * std::int64_t{sequence_head} + reverse;
    return params.ends[walk * params.segments + segment(n)];
  }
  __device__ float factor_of(int pair) const {
    const EntryFactors& of_pair =
        params.entry_factors[std::int64_t{sequence_head} * params.pairs + pair];
    return reverse ? of_pair.gradient : of_pair.state;
  }
  /// The lane's part of a pair's state. S lies in rows, dS in panels.
  __device__ Element* state(int pair) const {
    const int H = params.problem.forward.H, pairs = params.pairs;
    if (reverse) {
      const std::int64_t index = std::int64_t{sequence_head} * pairs + pair;
      return static_cast<Element*>(params.state_gradients) + index * (64 * 64) +
             panel_offset(element / 64, element % 64 / 8) / static_cast<int>(sizeof(Element));
    }
    const std::int64_t index =
        (std::int64_t{sequence_head / H} * pairs + pair) * H + sequence_head % H;
    return static_cast<Element*>(params.states) + index * (64 * 64) + element;
  }

  /// Finds what comes before segment number n, from the segment before back.
  __device__ void find_entry(int n, float (&entry)[8]) const {
    float left = 1.0f;
    for (int last = n - 1; last >= 0 && left != 0.0f; last -= kEndsTogether) {
      Words<float> added[kEndsTogether];
      float factor[kEndsTogether];
#pragma unroll
      for (int i = 0; i < kEndsTogether; ++i) {
        const SegmentEnd& from = end(max(last - i, 0));
        added[i] = load_words(from.added + element, last >= i);
        factor[i] = last > i ? from.factor : 0.0f;
      }
#pragma unroll
      for (int i = 0; i < kEndsTogether; ++i) {
        if (left == 0.0f) break;
        float values[8];
        unpack(added[i], values);
#pragma unroll
        for (int j = 0; j < 8; ++j) entry[j] += left * values[j];
        left *= factor[i];
      }
    }
  }

  /// Adds it to the segment's states.
  __device__ void add(int n) const {
    const int lane = static_cast<int>(threadIdx.x % 32);
    float entry[8] = {};
    find_entry(n, entry);
    const int first = segment(n) * params.segment_pairs;
    const int last = min(first + params.segment_pairs, params.pairs);
    for (int begin = first; begin < last; begin += 32) {
      // A lane asks for the factor of a pair: most are 0.
      const float factor = begin + lane < last ? factor_of(begin + lane) : 0.0f;
      unsigned left = __ballot_sync(0xFFFFFFFFu, factor != 0.0f);
      while (left != 0) {
        Words<Element> words[kStatesTogether];
        int lanes[kStatesTogether];
#pragma unroll
        for (int i = 0; i < kStatesTogether; ++i) {
          lanes[i] = __ffs(static_cast<int>(left)) - 1;  // -1: none is left
          left &= left - 1;
          words[i] = load_words(state(begin + lanes[i]), lanes[i] >= 0);
        }
#pragma unroll
        for (int i = 0; i < kStatesTogether; ++i) {
          if (lanes[i] < 0) break;
          const float remembered = __shfl_sync(0xFFFFFFFFu, factor, lanes[i]);
          float values[8];
          unpack(words[i], values);
#pragma unroll
          for (int j = 0; j < 8; ++j) values[j] += remembered * entry[j];
          store_words(state(begin + lanes[i]), values);
        }
      }
    }
  }
};

/// `kForward`: whether both directions were walked, not only the reverse one.
template <class Element, bool kForward>
__global__ __launch_bounds__(32 * ChunkEntries<Element>::kMostWarps) void gla_chunk_entries_kernel(
    const __grid_constant__ ChunkBackwardParams params) {
  using Entries = ChunkEntries<Element>;
  follow_stream();
  const unsigned sequence_head = blockIdx.x / Entries::kSlices;
  const unsigned slice = blockIdx.x - sequence_head * Entries::kSlices;
  const Entries entries{params, !kForward || blockIdx.y == 1, static_cast<int>(sequence_head),
                        static_cast<int>(slice * Entries::kElements + threadIdx.x % 32 * 8)};
  const int warp = static_cast<int>(threadIdx.x / 32), warps = static_cast<int>(blockDim.x / 32);
  for (int n = 1 + warp; n < params.segments; n += warps) entries.add(n);
}

}  // namespace tandem::cuda::gla
