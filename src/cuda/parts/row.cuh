// Rows of a matrix that CTAs pass over. All loads of a row are
// under way before the first is used, and what fits stays in registers between two passes.
#pragma once

#include <cstdint>

#include "core/strided_tensor.h"
#include "cuda/parts/eight.cuh"
#include "cuda/parts/warp_sums.cuh"

namespace tandem::cuda {

template <class Element>
__device__ Element* row_of(const MatrixTensor& matrix, std::int64_t row) {
  return static_cast<Element*>(matrix.data) + row * matrix.row_stride;
}

/// Loads eight elements of a row, or `count` of them and zeros. `kRegular`: rows begin at multiples
/// of 16 bytes and have whole eights.
template <bool kRegular, class Stored>
__device__ Words<Stored> load_words(const Stored* from, int count) {
  if constexpr (kRegular) {
    return load_words(from, count > 0);
  } else {
    Words<Stored> words{};
    Stored* to = reinterpret_cast<Stored*>(&words);
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      if (i < count) to[i] = from[i];
    }
    return words;
  }
}

/// Makes the compiler unpack words again, where it would keep their values from one pass to the
/// next, in as many registers more.
template <class Stored>
__device__ void keep_packed(Words<Stored>& words) {
  for (uint4& four : words.words) {
    asm volatile("" : "+r"(four.x), "+r"(four.y), "+r"(four.z), "+r"(four.w));
  }
}

/// All threads of a CTA.
template <int kThreadsT>
struct RowCta {
  static constexpr int kThreads = kThreadsT;
  static constexpr int kWarps = kThreads / 32;

  static __device__ int thread() { return static_cast<int>(threadIdx.x); }
  /// First column of a thread's eight number i.
  static __device__ int column(int i) { return 8 * (thread() + i * kThreads); }

  /// Calls get(i) for the eights of a row that a thread keeps, reload(i) for those beyond.
  template <int kHeld, class Get, class Reload>
  static __device__ void for_eights(int d, Get get, Reload reload) {
#pragma unroll
    for (int i = 0; i < kHeld; ++i) get(i);
#pragma unroll 1
    for (int i = kHeld; column(i) < d; ++i) reload(i);
  }

  /// Sums each of the values in one order; every thread gets the sums. All threads of the CTA.
  template <int kCount>
  static __device__ void sum(float (&values)[kCount]) {
#pragma unroll
    for (float& value : values) value = sum_warp(value);
    __shared__ float sums[kWarps][kCount];
    __syncthreads();  // the sums before have been read
    if (threadIdx.x % 32 == 0) {
#pragma unroll
      for (int i = 0; i < kCount; ++i) sums[threadIdx.x / 32][i] = values[i];
    }
    __syncthreads();
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      values[i] = 0.0f;
#pragma unroll
      for (int warp = 0; warp < kWarps; ++warp) values[i] += sums[warp][i];
    }
  }
};

/// The eights of a row that a thread of a CTA takes: `kHeld` in registers, those beyond loaded
/// again.
template <class Cta, class Stored, bool kRegular, int kHeld>
class RowPart {
 public:
  RowPart() = default;
  /// Null: zeros.
  __device__ RowPart(const Stored* row, int d) : row_(row), d_(row != nullptr ? d : 0) {
#pragma unroll
    for (int i = 0; i < kHeld; ++i) held_[i] = load(i);
  }

  __device__ void get(int i, float (&values)[8]) const {
    Words<Stored> words = held_[i];
    keep_packed(words);
    unpack(words, values);
  }
  __device__ void reload(int i, float (&values)[8]) const { unpack(load(i), values); }

 private:
  __device__ Words<Stored> load(int i) const {
    return load_words<kRegular>(row_ + Cta::column(i), d_ - Cta::column(i));
  }

  const Stored* row_;
  int d_;
  Words<Stored> held_[kHeld];
};

/// The same of a vector of weights, of Element or fp32; null: `absent` everywhere.
template <class Cta, class Element, bool kRegular, int kHeld>
class WeightPart {
 public:
  __device__ WeightPart(const void* data, bool fp32, int d, float absent)
      : data_(data), fp32_(fp32), d_(d), absent_(absent) {
    if (data == nullptr) return;
    if (fp32) {
#pragma unroll
      for (int i = 0; i < kHeld; ++i) held_[i] = load<float>(i);
    } else {
#pragma unroll
      for (int i = 0; i < kHeld; ++i) held_[i].words[0] = load<Element>(i).words[0];
    }
  }

  __device__ void get(int i, float (&values)[8]) const {
    if constexpr (kHeld > 0) {
      convert(held_[i], values);
    } else {
      reload(i, values);
    }
  }
  __device__ void reload(int i, float (&values)[8]) const {
    Words<float> words;
    if (data_ != nullptr && fp32_) words = load<float>(i);
    if (data_ != nullptr && !fp32_) words.words[0] = load<Element>(i).words[0];
    convert(words, values);
  }

 private:
  template <class Stored>
  __device__ Words<Stored> load(int i) const {
    return load_words<kRegular>(static_cast<const Stored*>(data_) + Cta::column(i),
                                d_ - Cta::column(i));
  }
  __device__ void convert(const Words<float>& words, float (&values)[8]) const {
    if (data_ == nullptr) {
#pragma unroll
      for (float& value : values) value = absent_;
    } else if (fp32_) {
      unpack(words, values);
    } else {
      unpack(Words<Element>{words.words[0]}, values);
    }
  }

  const void* data_;
  bool fp32_;
  int d_;
  float absent_;
  Words<float> held_[kHeld > 0 ? kHeld : 1];
};

}  // namespace tandem::cuda
