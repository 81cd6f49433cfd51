// A thread's neighbouring channels of a token: on their way from global to shared memory, in
// registers as fp32, and back.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cutlass/arch/memory_sm80.h>

#include <cstdint>
#include <cstring>
#include <type_traits>

#include "cuda/parts/fragment.cuh"

namespace tandem::cuda::scan {

/// How many elements of type `Piece` hold kCount channels.
template <class Stored, class Piece, int kCount>
constexpr int kPiecesOf = kCount* static_cast<int>(sizeof(Stored)) /
                          static_cast<int>(sizeof(Piece));

/// Starts copying kCount channels into pieces (uint2 or uint4) that lie kStride apart; `valid` of
/// them exist (all or none if kAligned), the others become 0. With kAligned copies are complete
/// after cutlass::arch::cp_async_wait, else at once.
template <bool kAligned, int kStride, int kCount, class Stored, class Piece>
__device__ inline void copy_channels(Piece* pieces, const Stored* from, int valid) {
  constexpr int kPieces = kPiecesOf<Stored, Piece, kCount>;
  if constexpr (kAligned) {
    // why some go through L1: only copies of 16 bytes can bypass it.
    constexpr auto kCached = sizeof(Piece) == 16 ? cutlass::arch::CacheOperation::Global
                                                 : cutlass::arch::CacheOperation::Always;
#pragma unroll
    for (int i = 0; i < kPieces; ++i) {
      cutlass::arch::cp_async_zfill<sizeof(Piece), kCached>(
          &pieces[i * kStride], reinterpret_cast<const Piece*>(from) + i, valid > 0);
    }
  } else {
    using Bits = std::conditional_t<sizeof(Stored) == 4, std::uint32_t, std::uint16_t>;
    Bits bits[kCount];
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      bits[i] = i < valid ? reinterpret_cast<const Bits*>(from)[i] : Bits{0};
    }
#pragma unroll
    for (int i = 0; i < kPieces; ++i) {
      Piece piece;
      memcpy(&piece, &bits[i * kCount / kPieces], sizeof(Piece));
      pieces[i * kStride] = piece;
    }
  }
}

template <int kStride, class Stored, class Piece, int kCount>
__device__ inline void unpack_channels(const Piece* pieces, float (&values)[kCount]) {
  constexpr int kPieces = kPiecesOf<Stored, Piece, kCount>;
  constexpr int kWords = sizeof(Piece) / 4;
#pragma unroll
  for (int i = 0; i < kPieces; ++i) {
    const Piece piece = pieces[i * kStride];
    std::uint32_t words[kWords];
    memcpy(words, &piece, sizeof(Piece));
#pragma unroll
    for (int j = 0; j < kWords; ++j) {
      if constexpr (sizeof(Stored) == 4) {
        values[i * kWords + j] = __uint_as_float(words[j]);
      } else {
        const float2 pair = unpack_pair<Stored>(words[j]);
        values[2 * (i * kWords + j)] = pair.x;
        values[2 * (i * kWords + j) + 1] = pair.y;
      }
    }
  }
}

/// Stores the channels that exist, rounded to nearest even.
template <bool kAligned, class Piece, class Stored, int kCount>
__device__ inline void store_channels(Stored* to, const float (&values)[kCount], int valid) {
  if constexpr (kAligned) {
    constexpr int kWords = kCount * sizeof(Stored) / 4;
    std::uint32_t words[kWords];
#pragma unroll
    for (int j = 0; j < kWords; ++j) {
      if constexpr (sizeof(Stored) == 4) {
        words[j] = __float_as_uint(values[j]);
      } else {
        words[j] = pack_pair<Stored>(values[2 * j], values[2 * j + 1]);
      }
    }
    if (valid <= 0) return;
#pragma unroll
    for (int i = 0; i < kPiecesOf<Stored, Piece, kCount>; ++i) {
      Piece piece;
      memcpy(&piece, &words[i * sizeof(Piece) / 4], sizeof(Piece));
      reinterpret_cast<Piece*>(to)[i] = piece;
    }
  } else {
#pragma unroll
    for (int j = 0; j < kCount; ++j) {
      if (j < valid) to[j] = static_cast<Stored>(values[j]);
    }
  }
}

template <int kCount>
__device__ inline bool are_finite(const float (&values)[kCount]) {
  float zero = 0.0f;
#pragma unroll
  for (const float value : values) zero = fmaf(value, 0.0f, zero);
  return zero == 0.0f;
}

/// Loads a row of a state; null is 0.
template <int kCount>
__device__ inline void load_state(const float* from, float (&values)[kCount], int valid) {
#pragma unroll
  for (int j = 0; j < kCount; ++j) values[j] = from != nullptr && j < valid ? from[j] : 0.0f;
}
template <int kCount>
__device__ inline void store_state(float* to, const float (&values)[kCount], int valid) {
#pragma unroll
  for (int j = 0; j < kCount; ++j) {
    if (j < valid) to[j] = values[j];
  }
}

}  // namespace tandem::cuda::scan
