// Eight neighbouring elements of a row: what a lane of an element-wise kernel takes at a time.
#pragma once

#include <cstdint>

#include "cuda/parts/fragment.cuh"

namespace tandem::cuda {

/// Eight elements as they are stored.
template <class Stored>
struct Words {
  uint4 words[sizeof(Stored) / 2];
};

template <class Stored>
__device__ void unpack(const Words<Stored>& words, float (&values)[8]) {
  const Stored* stored = reinterpret_cast<const Stored*>(&words);
#pragma unroll
  for (int i = 0; i < 8; ++i) values[i] = static_cast<float>(stored[i]);
}

/// Loads eight elements that begin at a multiple of 16 bytes, or zeros.
template <class Stored>
__device__ Words<Stored> load_words(const Stored* from, bool inside) {
  Words<Stored> words{};
  if (inside) words = *reinterpret_cast<const Words<Stored>*>(from);
  return words;
}

/// Loads eight elements of a row, or `count` of them and zeros.
template <class Stored>
__device__ void load_eight(const Stored* from, int count, float (&values)[8]) {
  if (count >= 8 && reinterpret_cast<std::uintptr_t>(from) % 16 == 0) {
    unpack(*reinterpret_cast<const Words<Stored>*>(from), values);
  } else {
#pragma unroll
    for (int i = 0; i < 8; ++i) values[i] = i < count ? static_cast<float>(from[i]) : 0.0f;
  }
}

/// Loads eight elements at `column` of a row of fp32 or Element.
template <class Element>
__device__ void load_eight(const void* row, bool fp32, int column, int count, float (&values)[8]) {
  if (fp32) {
    load_eight(static_cast<const float*>(row) + column, count, values);
  } else {
    load_eight(static_cast<const Element*>(row) + column, count, values);
  }
}

/// Stores eight 16-bit elements that begin at a multiple of 16 bytes.
template <class Element>
__device__ void store_words(Element* to, const float (&values)[8]) {
  *reinterpret_cast<uint4*>(to) = {
      pack_pair<Element>(values[0], values[1]), pack_pair<Element>(values[2], values[3]),
      pack_pair<Element>(values[4], values[5]), pack_pair<Element>(values[6], values[7])};
}

/// Stores eight 16-bit elements, or the first `count` of them.
template <class Element>
__device__ void store_eight(Element* to, int count, const float (&values)[8]) {
  if (count >= 8 && reinterpret_cast<std::uintptr_t>(to) % 16 == 0) {
    store_words(to, values);
  } else {
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      if (i < count) to[i] = static_cast<Element>(values[i]);
    }
  }
}

/// The same of fp32.
__device__ inline void store_eight(float* to, int count, const float (&values)[8]) {
  if (count >= 8 && reinterpret_cast<std::uintptr_t>(to) % 16 == 0) {
    reinterpret_cast<float4*>(to)[0] = {values[0], values[1], values[2], values[3]};
    reinterpret_cast<float4*>(to)[1] = {values[4], values[5], values[6], values[7]};
  } else {
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      if (i < count) to[i] = values[i];
    }
  }
}

}  // namespace tandem::cuda
