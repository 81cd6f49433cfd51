// What the tokens of a tile are: where a sequence begins, where one ends, what belongs to none.
#pragma once

#include <cstdint>

namespace tandem::cuda {

/// The sequences of batch row b: itself, or those of cu_seqlens.
struct ScanSequences {
  const std::int32_t* cu_seqlens;  // (N + 1), or null: one sequence per batch row
  int N;
  int T;

  __device__ int boundary(int n) const { return min(max(cu_seqlens[n], 0), T); }
};

struct TokenKind {
  static constexpr int kInside = -1;   // neither first nor last
  static constexpr int kOutside = -2;  // of no sequence; as `first` only

  int first;  // the sequence that begins here
  int last;   // the sequence that ends here
};

/// Of the token at `time` in batch row b. Behind T: kInside, its x is 0 and nothing is stored.
__device__ inline TokenKind token_kind(const ScanSequences& sequences, int b, int time) {
  TokenKind kind{TokenKind::kInside, TokenKind::kInside};
  if (time >= sequences.T) return kind;
  if (sequences.cu_seqlens == nullptr) {
    if (time == 0) kind.first = b;
    if (time == sequences.T - 1) kind.last = b;
    return kind;
  }
  // The last boundary at or before the token: before the first and at or behind the last, none.
  int low = 0, high = sequences.N + 1;  // boundaries below `low` are at or before it
  while (low < high) {
    const int middle = (low + high) / 2;
    if (sequences.boundary(middle) <= time) {
      low = middle + 1;
    } else {
      high = middle;
    }
  }
  const int n = low - 1;
  if (n < 0 || n >= sequences.N) return {TokenKind::kOutside, TokenKind::kInside};
  if (sequences.boundary(n) == time) kind.first = n;
  if (sequences.boundary(n + 1) == time + 1) kind.last = n;
  return kind;
}

}  // namespace tandem::cuda
