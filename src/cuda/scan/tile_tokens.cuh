// What the tokens of a tile are: where a sequence begins, where one ends, what belongs to none.
#pragma once

#include <cstdint>

#include "cuda/scan/sequences.h"

namespace tandem::cuda::scan {

/// Returns where sequence n begins and sequence n - 1 ends.
__device__ inline int sequence_boundary(const ScanSequences& sequences, int n) {
  return min(max(sequences.cu_seqlens[n], 0), sequences.T);
}

struct TokenKind {
  static constexpr int kInside = -1;   // neither first nor last
  static constexpr int kOutside = -2;  // of no sequence; as `first` only

  int first;  // the sequence that begins here
  int last;   // the sequence that ends here
};

/// Sets the kinds of a tile's tokens as if it held no boundary but cu_seqlens's ends. All threads;
/// after a barrier of the CTA one warp marks the boundaries. Tokens behind T are inside: their x is
/// 0.
template <int kTileTokens, int kThreads>
__device__ inline void clear_tokens(const ScanSequences& sequences, int b, int begin,
                                    TokenKind* kinds) {
  const int T = sequences.T;
  const bool packed = sequences.cu_seqlens != nullptr;
  int first = 0, end = T;
  if (packed) {
    first = sequence_boundary(sequences, 0);
    end = sequence_boundary(sequences, sequences.N);
  }
#pragma unroll
  for (int t = threadIdx.x; t < kTileTokens; t += kThreads) {
    const int time = begin + t;
    TokenKind kind{TokenKind::kInside, TokenKind::kInside};
    if (packed) {
      if (time < T && (time < first || time >= end)) kind.first = TokenKind::kOutside;
    } else {
      if (time == 0) kind.first = b;
      if (time == T - 1) kind.last = b;
    }
    kinds[t] = kind;
  }
}

template <int kTileTokens>
__device__ inline void mark_tokens(const ScanSequences& sequences, int begin, TokenKind* kinds) {
  if (sequences.cu_seqlens == nullptr) return;
  const int lane = threadIdx.x % 32;
  // Finds the first boundary at or behind the tile's begin among [low, high), 32 at a time.
  int low = 0, high = sequences.N + 1;
  while (low < high) {
    const int step = (high - low + 31) / 32;
    const int probe = low + lane * step;
    const bool before = probe < high && sequence_boundary(sequences, probe) < begin;
    const int count = __popc(__ballot_sync(0xFFFFFFFFu, before));
    if (count == 0) break;
    high = min(high, low + count * step);
    low += (count - 1) * step + 1;
  }
  const int end = begin + kTileTokens;
  for (int n = low + lane; n <= sequences.N; n += 32) {
    const int boundary = sequence_boundary(sequences, n);
    if (boundary > end || boundary < begin) break;
    if (n < sequences.N && boundary < end && sequence_boundary(sequences, n + 1) > boundary) {
      kinds[boundary - begin].first = n;
    }
    if (n > 0 && boundary > begin && sequence_boundary(sequences, n - 1) < boundary) {
      kinds[boundary - 1 - begin].last = n - 1;
    }
  }
}

}  // namespace tandem::cuda::scan
