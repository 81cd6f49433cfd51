// Eight neighbouring channels of a token: on their way from global to shared memory, in registers
// as fp32, and back.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cutlass/arch/memory_sm80.h>

#include <cstdint>
#include <type_traits>

#include "cuda/parts/fragment.cuh"

namespace tandem::cuda {

constexpr int kChannels = 8;

/// 16-byte pieces of eight channels.
template <class Stored>
constexpr int kPieces = kChannels* static_cast<int>(sizeof(Stored)) / 16;

/// Bits of an element, as an integer.
template <class Stored>
using StoredBits = std::conditional_t<sizeof(Stored) == 4, std::uint32_t, std::uint16_t>;

/// Starts copying eight channels into pieces that lie kStride apart; `valid` of them exist (all or
/// none if kAligned), the others become 0. Aligned: 16 bytes at a time, complete after
/// cutlass::arch::cp_async_wait; else complete at once.
template <bool kAligned, int kStride, class Stored>
__device__ inline void copy_channels(uint4* pieces, const Stored* from, int valid) {
  if constexpr (kAligned) {
#pragma unroll
    for (int i = 0; i < kPieces<Stored>; ++i) {
      cutlass::arch::cp_async_zfill<16, cutlass::arch::CacheOperation::Global>(
          &pieces[i * kStride], reinterpret_cast<const uint4*>(from) + i, valid > 0);
    }
  } else {
    const auto* bits = reinterpret_cast<const StoredBits<Stored>*>(from);
    constexpr int kPerWord = 4 / static_cast<int>(sizeof(Stored));
    std::uint32_t words[4 * kPieces<Stored>];
#pragma unroll
    for (int i = 0; i < 4 * kPieces<Stored>; ++i) {
      words[i] = i * kPerWord < valid ? bits[i * kPerWord] : 0;
      if constexpr (kPerWord == 2) {
        const std::uint32_t high = i * 2 + 1 < valid ? bits[i * 2 + 1] : 0;
        words[i] |= high << 16;
      }
    }
#pragma unroll
    for (int i = 0; i < kPieces<Stored>; ++i) {
      pieces[i * kStride] = {words[4 * i], words[4 * i + 1], words[4 * i + 2], words[4 * i + 3]};
    }
  }
}

template <int kStride, class Stored>
__device__ inline void unpack_channels(const uint4* pieces, float (&values)[kChannels]) {
#pragma unroll
  for (int i = 0; i < kPieces<Stored>; ++i) {
    const uint4 piece = pieces[i * kStride];
    const std::uint32_t words[4] = {piece.x, piece.y, piece.z, piece.w};
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      if constexpr (sizeof(Stored) == 4) {
        values[4 * i + j] = __uint_as_float(words[j]);
      } else {
        const float2 pair = unpack_pair<Stored>(words[j]);
        values[2 * j] = pair.x;
        values[2 * j + 1] = pair.y;
      }
    }
  }
}

/// Stores those of the eight channels that exist, rounded to nearest even.
template <bool kAligned, class Stored>
__device__ inline void store_channels(Stored* to, const float (&values)[kChannels], int valid) {
  if constexpr (kAligned) {
    if (valid <= 0) return;
#pragma unroll
    for (int i = 0; i < kPieces<Stored>; ++i) {
      std::uint32_t words[4];
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        if constexpr (sizeof(Stored) == 4) {
          words[j] = __float_as_uint(values[4 * i + j]);
        } else {
          words[j] = pack_pair<Stored>(values[2 * j], values[2 * j + 1]);
        }
      }
      reinterpret_cast<uint4*>(to)[i] = {words[0], words[1], words[2], words[3]};
    }
  } else {
#pragma unroll
    for (int j = 0; j < kChannels; ++j) {
      if (j < valid) to[j] = static_cast<Stored>(values[j]);
    }
  }
}

__device__ inline bool are_finite(const float (&values)[kChannels]) {
  float zero = 0.0f;
#pragma unroll
  for (const float value : values) zero = fmaf(value, 0.0f, zero);
  return zero == 0.0f;
}

/// A row of a state; null: 0.
__device__ inline void load_state(const float* from, float (&values)[kChannels], int valid) {
#pragma unroll
  for (int j = 0; j < kChannels; ++j) values[j] = from != nullptr && j < valid ? from[j] : 0.0f;
}
__device__ inline void store_state(float* to, const float (&values)[kChannels], int valid) {
#pragma unroll
  for (int j = 0; j < kChannels; ++j) {
    if (j < valid) to[j] = values[j];
  }
}

}  // namespace tandem::cuda
