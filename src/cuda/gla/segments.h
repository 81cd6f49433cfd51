// Where a sequence is cut into segments, the same on host and device.
#pragma once

#include <algorithm>
#include <cstdint>

namespace tandem::cuda {

/// First token of segment `index` of `segments` (index = segments: the sequence's end). Segments
/// are whole chunks of 64 tokens but for the last. Where they have several, earlier ones are
/// longer, by 0.4 chunks each: a later one begins later, for it takes the states of all earlier
/// ones.
constexpr int segment_begin(int length, int segments, int index) {
  constexpr int kChunk = 64;
  const int chunks = (length + kChunk - 1) / kChunk;
  const int mean = chunks / segments;
  const int longer = mean > segments / 2 ? (2 * index * (segments - index) + 5) / 10 : 0;
  const int chunk = mean * index + chunks % segments * index / segments + longer;
  return std::min(chunk * kChunk, length);
}

}  // namespace tandem::cuda
