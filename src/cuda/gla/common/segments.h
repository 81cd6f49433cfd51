// Where a sequence is cut into chunks and segments, the same on host and device.
#pragma once

namespace tandem::cuda::gla {

constexpr int kChunk = 64;  // tokens of a chunk, in every kernel over chunks

/// First chunk of segment `index` of `segments`, in the order of the walk (index = segments: the
/// number of chunks). Where segments have several chunks each, earlier ones are longer, by 0.4
/// each: a later segment starts later, since it takes the states of all earlier ones.
constexpr int segment_begin_chunk(int chunks, int segments, int index) {
  const int mean = chunks / segments;
  const int longer = mean > segments / 2 ? (2 * index * (segments - index) + 5) / 10 : 0;
  return mean * index + chunks % segments * index / segments + longer;
}

}  // namespace tandem::cuda::gla
