// Fragments between registers and panels: pairs of 16-bit values, ldmatrix and stmatrix, and the
// accumulator's way into the next product's A operand (layouts in wgmma.cuh).
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cute/arch/copy_sm75.hpp>
#include <cute/arch/copy_sm90.hpp>

#include "cuda/parts/panel.cuh"

namespace tandem::cuda {

/// Packs two fp32 values, rounded to nearest even; `low` in the lower half.
template <class Element>
__device__ inline std::uint32_t pack_pair(float low, float high) {
  std::uint32_t bits;
  if constexpr (std::is_same_v<Element, __nv_bfloat16>) {
    const __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
    memcpy(&bits, &pair, 4);
  } else {
    const __half2 pair = __floats2half2_rn(low, high);
    memcpy(&bits, &pair, 4);
  }
  return bits;
}

/// Unpacks the two values of a pair, exactly.
template <class Element>
__device__ inline float2 unpack_pair(std::uint32_t bits) {
  if constexpr (std::is_same_v<Element, __nv_bfloat16>) {
    return {__uint_as_float(bits << 16), __uint_as_float(bits & 0xFFFF0000u)};
  } else {
    __half2 pair;
    memcpy(&pair, &bits, 4);
    return __half22float2(pair);
  }
}

/// Makes the A operand of contraction step `step` of the next product, from an accumulator whose
/// columns it contracts.
template <class Element, int kCount>
__device__ inline void accumulator_to_operand(const float (&acc)[kCount], int step,
                                              std::uint32_t (&a)[4]) {
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    a[i] = pack_pair<Element>(acc[8 * step + 2 * i], acc[8 * step + 2 * i + 1]);
  }
}

/// Stores the 16 columns [16*step, 16*step+16) of a 64-row accumulator, already packed as by
/// accumulator_to_operand, into a panel with the same rows and columns.
__device__ inline void store_rows(void* panel, int step, const std::uint32_t (&packed)[4]) {
  const int lane = threadIdx.x % 32;
  const int row = threadIdx.x % 128 / 32 * 16 + lane % 16;
  void* piece = static_cast<char*>(panel) + panel_offset(row, 2 * step + lane / 16);
  cute::SM90_U32x4_STSM_N::copy(packed[0], packed[1], packed[2], packed[3],
                                *static_cast<cute::uint128_t*>(piece));
}

/// Loads the 16 columns [16*step, 16*step+16) of a panel, packed as store_rows takes them.
__device__ inline void load_rows(const void* panel, int step, std::uint32_t (&packed)[4]) {
  const int lane = threadIdx.x % 32;
  const int row = threadIdx.x % 128 / 32 * 16 + lane % 16;
  const void* piece = static_cast<const char*>(panel) + panel_offset(row, 2 * step + lane / 16);
  cute::SM75_U32x4_LDSM_N::copy(*static_cast<const cute::uint128_t*>(piece), packed[0], packed[1],
                                packed[2], packed[3]);
}

/// Stores the 16 columns [16*step, 16*step+16) of a packed 64-row accumulator transposed: its
/// columns become panel rows.
__device__ inline void store_columns(void* panel, int step, const std::uint32_t (&packed)[4]) {
  const int lane = threadIdx.x % 32;
  const int row = lane / 16 * 8 + lane % 8;
  const int piece = threadIdx.x % 128 / 32 * 2 + lane / 8 % 2;
  // why the step is added last: the instruction holds it as an offset, instead of a register per
  // step.
  void* at = static_cast<char*>(panel) + panel_offset(row, piece) + step * panel_bytes(16);
  cute::SM90_U16x8_STSM_T::copy(packed[0], packed[1], packed[2], packed[3],
                                *static_cast<cute::uint128_t*>(at));
}

/// Loads the A operand of contraction step `step` whose rows are a panel's 64 columns and whose
/// contraction runs along the panel's rows.
__device__ inline void load_columns(const void* panel, int step, std::uint32_t (&a)[4]) {
  const int lane = threadIdx.x % 32;
  const int row = lane / 16 * 8 + lane % 8;
  const int piece = threadIdx.x % 128 / 32 * 2 + lane / 8 % 2;
  const void* at =
      static_cast<const char*>(panel) + panel_offset(row, piece) + step * panel_bytes(16);
  cute::SM75_U16x8_LDSM_T::copy(*static_cast<const cute::uint128_t*>(at), a[0], a[1], a[2], a[3]);
}

/// Returns this thread's first column in 8-column block `block` of an accumulator.
__device__ inline int fragment_column(int block) { return 8 * block + threadIdx.x % 4 * 2; }
/// Returns the row of this thread's accumulator elements 0 and 1 of each block; elements 2 and 3
/// lie 8 rows below.
__device__ inline int fragment_row() { return threadIdx.x % 128 / 32 * 16 + threadIdx.x % 32 / 4; }

}  // namespace tandem::cuda
