// A few neighbouring elements of a tensor in registers: loaded and stored by one instruction, fp32
// in between.
#pragma once

#include <cuda_bf16.h>
#include <cutlass/arch/memory.h>

#include <cstdint>
#include <type_traits>

#include "cuda/parts/fragment.cuh"

namespace tandem::cuda {

/// `kCount` elements of fp32 or bf16: 16 bytes, at an address that is a multiple of 16, or a single
/// element anywhere. Kept as stored, so that loads waiting for their data cost no more registers
/// than bytes.
template <class Stored, int kCount>
class StoredVector {
  static constexpr int kBytes = kCount * static_cast<int>(sizeof(Stored));
  static_assert(kBytes == 16 || kCount == 1);
  static_assert(std::is_same_v<Stored, float> || std::is_same_v<Stored, __nv_bfloat16>);
  using Bits = std::conditional_t<kBytes == 16, uint4,
                                  std::conditional_t<kBytes == 4, std::uint32_t, std::uint16_t>>;

 public:
  /// Loads the elements if they exist, else sets zeros and reads nothing. No branch, so that many
  /// loads can be on the way.
  __device__ void load(const Stored* from, bool exists) {
    cutlass::arch::global_load<Bits, kBytes>(bits_, from, exists);
  }
  __device__ void store(Stored* to, bool exists) const {
    cutlass::arch::global_store<Bits, kBytes>(bits_, to, exists);
  }

  __device__ void unpack(float (&values)[kCount]) const {
    if constexpr (kCount == 1) {
      values[0] = __uint_as_float(std::uint32_t{bits_} << (32 - 8 * kBytes));
    } else {
      const std::uint32_t words[4] = {bits_.x, bits_.y, bits_.z, bits_.w};
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        if constexpr (kCount == 4) {
          values[i] = __uint_as_float(words[i]);
        } else {
          const float2 pair = unpack_pair<Stored>(words[i]);
          values[2 * i] = pair.x;
          values[2 * i + 1] = pair.y;
        }
      }
    }
  }

  /// Packs values, rounded to nearest even.
  __device__ void pack(const float (&values)[kCount]) {
    if constexpr (kBytes == 4) {
      bits_ = __float_as_uint(values[0]);
    } else if constexpr (kBytes == 2) {
      bits_ = __bfloat16_as_ushort(__float2bfloat16_rn(values[0]));
    } else {
      std::uint32_t words[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        if constexpr (kCount == 4) {
          words[i] = __float_as_uint(values[i]);
        } else {
          words[i] = pack_pair<Stored>(values[2 * i], values[2 * i + 1]);
        }
      }
      bits_ = {words[0], words[1], words[2], words[3]};
    }
  }

 private:
  Bits bits_{};
};

}  // namespace tandem::cuda
