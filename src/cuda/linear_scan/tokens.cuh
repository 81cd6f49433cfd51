// What the tokens of a tile are.
#pragma once

#include "cuda/scan/tile_tokens.cuh"

namespace tandem::cuda::linear_scan {

using namespace scan;

/// Returns the kind of the token at `time` in batch row b. The first token of a batch row is
/// inside: the state before its tile is the initial one. `ends`: final states are wanted.
__device__ inline TokenKind kind_of_token(const ScanSequences& sequences, int b, int time,
                                          bool ends) {
  constexpr TokenKind kOutside{TokenKind::kOutside, TokenKind::kInside};
  if (time >= sequences.T) return kOutside;
  TokenKind kind{TokenKind::kInside, TokenKind::kInside};
  if (sequences.cu_seqlens == nullptr) {
    if (ends && time == sequences.T - 1) kind.last = b;
    return kind;
  }
  // Finds the last boundary at or before the token; tokens before the first boundary, and at or
  // behind the last, belong to no sequence.
  int low = 0, high = sequences.N + 1;  // boundaries below `low` are at or before it
  while (low < high) {
    const int middle = low + (high - low) / 2;
    if (sequence_boundary(sequences, middle) <= time) {
      low = middle + 1;
    } else {
      high = middle;
    }
  }
  const int n = low - 1;
  if (n < 0 || n >= sequences.N) return kOutside;
  if (sequence_boundary(sequences, n) == time) kind.first = n;
  if (ends && sequence_boundary(sequences, n + 1) == time + 1) kind.last = n;
  return kind;
}

}  // namespace tandem::cuda::linear_scan
