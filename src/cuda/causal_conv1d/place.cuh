// Where a thread of causal_conv1d works: its tokens and channels, or its sequence's state; and
// which sequence a token belongs to.
#pragma once

#include "cuda/causal_conv1d/params.h"

namespace tandem::cuda::causal_conv1d {

/// Tokens [begin,end) of batch row b: sequence n's, or `outside` of all.
struct Span {
  int n = 0, begin = 0, end = 0;
  std::int64_t b = 0;
  bool outside = false;

  /// The row's span in which token t lies, which may be behind the row. `n` is not behind its
  /// sequence; whatever the offsets are, t lies in front of the end.
  static __device__ Span with(const CausalConv1dForwardProblem& p, std::int64_t b, int t, int n) {
    const int T = static_cast<int>(p.T), N = static_cast<int>(p.N);
    if (t >= T) return {n, t, t + 1, b, true};
    if (p.cu_seqlens == nullptr) return {static_cast<int>(b), 0, T, b, false};
    while (n < N && boundary(p, n + 1) <= t) ++n;
    if (n == N) return {n, t, T, b, true};
    const int begin = boundary(p, n);
    if (begin > t) return {n, t, begin, b, true};
    return {n, begin, boundary(p, n + 1), b, false};
  }

  /// The same for a thread's first token.
  static __device__ Span find(const CausalConv1dForwardProblem& p, std::int64_t b, int t) {
    int low = 0;
    if (p.cu_seqlens != nullptr) {
      for (int high = static_cast<int>(p.N); low < high;) {
        const int middle = low + (high - low) / 2;
        if (boundary(p, middle + 1) <= t) {
          low = middle + 1;
        } else {
          high = middle;
        }
      }
    }
    return with(p, b, t, low);
  }

  /// Sequence n, which may be empty.
  static __device__ Span of_sequence(const CausalConv1dForwardProblem& p, int n) {
    if (p.cu_seqlens == nullptr) return {n, 0, static_cast<int>(p.T), n, false};
    const int begin = boundary(p, n);
    return {n, begin, max(begin, boundary(p, n + 1)), 0, false};
  }

 private:
  static __device__ int boundary(const CausalConv1dForwardProblem& p, int n) {
    return min(max(p.cu_seqlens[n], 0), static_cast<int>(p.T));
  }
};

/// A thread's share of a call: tokens [begin,end) of row b from `channel` on. Not `active`: none.
struct Place {
  std::int64_t token_block, b;
  int column, strip, channel, begin, end;
  bool active;
  unsigned lanes;  // those of the warp that are active

  __device__ Place(const CausalConv1dForwardProblem& p, const Cut& cut, int channels) {
    token_block = blockIdx.x / cut.channel_blocks;
    column = static_cast<int>(threadIdx.x) % cut.columns;
    strip = static_cast<int>(threadIdx.x) / cut.columns;
    const int block = static_cast<int>(blockIdx.x % cut.channel_blocks);
    channel = (block * cut.columns + column) * channels;
    const std::int64_t index = token_block * cut.strips_per_block() + strip;
    active = index < cut.strips && channel < p.D;
    b = index / cut.strips_per_row;
    begin = static_cast<int>(index % cut.strips_per_row) * cut.strip_tokens;
    end = min(begin + cut.strip_tokens, static_cast<int>(p.T));
    lanes = __ballot_sync(~0u, active);
  }

  /// Hides that the place is what it was. why: addresses that a loop over sequences makes of it
  /// would be made before the loop, and take registers of the walk inside.
  __device__ void renew() { asm volatile("" : "+r"(channel), "+l"(b)); }
};

/// The sequence and channel of a thread of the CTAs behind those of tokens. Not `active`: none.
struct StatePlace {
  int n, channel;
  bool active;

  __device__ StatePlace(const CausalConv1dForwardProblem& p, const Cut& cut, int channels) {
    const std::int64_t block = blockIdx.x - cut.token_blocks * cut.channel_blocks;
    const std::int64_t index = block * kThreads + threadIdx.x;
    const int columns = (p.D + channels - 1) / channels;
    n = static_cast<int>(index / columns);
    channel = static_cast<int>(index % columns) * channels;
    active = index / columns < p.N;
  }
};

}  // namespace tandem::cuda::causal_conv1d
