// Rows of a matrix that teams of 128 threads pass over: a CTA, or a warpgroup of a larger one. All
// loads of a row are under way before the first is used, and what fits stays in registers between
// two passes.
#pragma once

#include <cstdint>

#include "core/strided_tensor.h"
#include "cuda/parts/eight.cuh"
#include "cuda/parts/warp_sums.cuh"

namespace tandem::cuda {

constexpr int kTeamThreads = 128;
constexpr int kTeamWarps = kTeamThreads / 32;
constexpr int kTeamBarrier = 7;  // named barrier

__device__ inline int team_thread() { return static_cast<int>(threadIdx.x % kTeamThreads); }

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

/// First column of a thread's eight number i.
__device__ inline int eight_column(int i) { return 8 * (team_thread() + i * kTeamThreads); }

/// Calls get(i) for the eights of a row that a thread keeps, reload(i) for those beyond.
template <int kHeld, class Get, class Reload>
__device__ void for_eights(int d, Get get, Reload reload) {
#pragma unroll
  for (int i = 0; i < kHeld; ++i) get(i);
  for (int i = kHeld; eight_column(i) < d; ++i) reload(i);
}

/// The eights of a row that a thread takes: `kHeld` in registers, those beyond loaded again.
template <class Stored, bool kRegular, int kHeld>
class RowPart {
 public:
  RowPart() = default;
  /// Null: zeros.
  __device__ RowPart(const Stored* row, int d) : row_(row), d_(row != nullptr ? d : 0) {
#pragma unroll
    for (int i = 0; i < kHeld; ++i) held_[i] = load(i);
  }

  __device__ void get(int i, float (&values)[8]) const { unpack(held_[i], values); }
  __device__ void reload(int i, float (&values)[8]) const { unpack(load(i), values); }

 private:
  __device__ Words<Stored> load(int i) const {
    return load_words<kRegular>(row_ + eight_column(i), d_ - eight_column(i));
  }

  const Stored* row_;
  int d_;
  Words<Stored> held_[kHeld];
};

/// The same of a vector of weights, of Element or fp32; null: `absent` everywhere.
template <class Element, bool kRegular, int kHeld>
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

  __device__ void get(int i, float (&values)[8]) const { convert(held_[i], values); }
  __device__ void reload(int i, float (&values)[8]) const {
    Words<float> words;
    if (data_ != nullptr && fp32_) words = load<float>(i);
    if (data_ != nullptr && !fp32_) words.words[0] = load<Element>(i).words[0];
    convert(words, values);
  }

 private:
  template <class Stored>
  __device__ Words<Stored> load(int i) const {
    return load_words<kRegular>(static_cast<const Stored*>(data_) + eight_column(i),
                                d_ - eight_column(i));
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
  Words<float> held_[kHeld];
};

/// Sums over a team, in one order. why in turns: who is late may still read the sums before.
template <int kCount>
class TeamSum {
 public:
  /// Sums each of the values; every thread gets the sums. All threads of the team.
  __device__ void operator()(float (&values)[kCount]) {
    __shared__ float sums[2][kTeamWarps][kCount];
#pragma unroll
    for (float& value : values) value = sum_warp(value);
    if (threadIdx.x % 32 == 0) {
#pragma unroll
      for (int i = 0; i < kCount; ++i) sums[turn_][team_thread() / 32][i] = values[i];
    }
    asm volatile("bar.sync %0, %1;" ::"n"(kTeamBarrier), "n"(kTeamThreads) : "memory");
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      values[i] = 0.0f;
#pragma unroll
      for (int warp = 0; warp < kTeamWarps; ++warp) values[i] += sums[turn_][warp][i];
    }
    turn_ ^= 1;
  }

 private:
  int turn_ = 0;
};

}  // namespace tandem::cuda
