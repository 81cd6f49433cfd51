// wgmma on panels: D[64,N] += A[64,16] B[16,N], fp32 accumulators, bf16 or fp16 operands.
//
// An operand in shared memory is one or more 64-row panels. "K-major": the contraction runs along
// the panel's columns; "MN-major": along its rows. `step` counts 16 contraction indices.
// Accumulator fragment: thread t of the warpgroup (warp w, g = t%32/4, c = t%4) holds for every
// 8-column block n the elements [16w+g, 8n+2c], [.., +1], [16w+g+8, 8n+2c], [.., +1] in acc[4n ..
// 4n+3].
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cute/arch/mma_sm90_gmma.hpp>
#include <cute/arch/mma_sm90_gmma_ext.hpp>
#include <cute/arch/util.hpp>
#include <utility>

#include "cuda/parts/panel.cuh"

namespace tandem::cuda {

using Major = cute::SM90::GMMA::Major;

namespace detail {

template <class Element, int N, Major kA, Major kB>
struct MmaAtoms;
#define TANDEM_MMA_ATOM(element, n, name)                                      \
  template <Major kA, Major kB>                                                \
  struct MmaAtoms<element, n, kA, kB> {                                        \
    using SS = cute::SM90::GMMA::MMA_64x##n##x16_F32##name##_SS<kA, kB>;       \
    using RS = cute::SM90::GMMA::MMA_64x##n##x16_F32##name##_RS<Major::K, kB>; \
  };
#define TANDEM_MMA_ATOMS(n)                   \
  TANDEM_MMA_ATOM(__nv_bfloat16, n, BF16BF16) \
  TANDEM_MMA_ATOM(__half, n, F16F16)
TANDEM_MMA_ATOMS(8)
TANDEM_MMA_ATOMS(16)
TANDEM_MMA_ATOMS(24)
TANDEM_MMA_ATOMS(32)
TANDEM_MMA_ATOMS(40)
TANDEM_MMA_ATOMS(48)
TANDEM_MMA_ATOMS(56)
TANDEM_MMA_ATOMS(64)
TANDEM_MMA_ATOMS(72)
TANDEM_MMA_ATOMS(80)
TANDEM_MMA_ATOMS(88)
TANDEM_MMA_ATOMS(96)
TANDEM_MMA_ATOMS(104)
TANDEM_MMA_ATOMS(112)
TANDEM_MMA_ATOMS(120)
TANDEM_MMA_ATOMS(128)
TANDEM_MMA_ATOMS(136)
TANDEM_MMA_ATOMS(144)
TANDEM_MMA_ATOMS(152)
TANDEM_MMA_ATOMS(160)
TANDEM_MMA_ATOMS(168)
TANDEM_MMA_ATOMS(176)
TANDEM_MMA_ATOMS(184)
TANDEM_MMA_ATOMS(192)
TANDEM_MMA_ATOMS(200)
TANDEM_MMA_ATOMS(208)
TANDEM_MMA_ATOMS(216)
TANDEM_MMA_ATOMS(224)
TANDEM_MMA_ATOMS(232)
TANDEM_MMA_ATOMS(240)
TANDEM_MMA_ATOMS(248)
TANDEM_MMA_ATOMS(256)
#undef TANDEM_MMA_ATOMS
#undef TANDEM_MMA_ATOM

/// Matrix descriptor of a 128-byte-swizzled operand at a shared-memory address.
__device__ inline std::uint64_t matrix_descriptor(const void* operand, int leading_bytes,
                                                  int byte_offset) {
  constexpr std::uint64_t kSwizzle128 = std::uint64_t{1} << 62;
  constexpr std::uint64_t kEightRows = std::uint64_t{(8 * kPanelRowBytes) >> 4} << 32;
  const std::uint32_t address = cute::cast_smem_ptr_to_uint(operand) + byte_offset;
  return kSwizzle128 | kEightRows | (std::uint64_t(leading_bytes >> 4) << 16) |
         ((address & 0x3FFFF) >> 4);
}

}  // namespace detail

/// Descriptor of contraction step `step` of a K-major operand: 64 rows, kPanelRows apart per panel.
template <int kPanelRows = 64>
__device__ inline std::uint64_t k_major_descriptor(const void* operand, int step) {
  constexpr int kStepsPerPanel = kPanelColumns / 16;
  return detail::matrix_descriptor(
      operand, 16,
      (step / kStepsPerPanel) * panel_bytes(kPanelRows) + (step % kStepsPerPanel) * 32);
}

/// Descriptor of contraction step `step` of an MN-major operand: panels side by side along M or N.
template <int kPanelRows = 64>
__device__ inline std::uint64_t mn_major_descriptor(const void* operand, int step) {
  return detail::matrix_descriptor(operand, panel_bytes(kPanelRows), step * 16 * kPanelRowBytes);
}

/// The descriptor of an operand that lies `bytes` further on, a multiple of 16: cheaper than
/// another.
__device__ inline std::uint64_t move_descriptor(std::uint64_t descriptor, int bytes) {
  return descriptor + (bytes >> 4);
}

/// Keeps the compiler from moving accesses of registers across asynchronous products. why by index:
/// nvcc (13.0) leaves some loops over references rolled up, and the registers are then in memory.
template <int kCount>
__device__ inline void fence_registers(float (&registers)[kCount]) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) cute::warpgroup_fence_operand(registers[i]);
}

/// Keeps the registers of an A operand until after the wait for its products. why: ptxas (13.0)
/// reuses them while a product still reads them, if a branch lies between its issue and its wait.
template <int kCount>
__device__ inline void hold_operand(const std::uint32_t (&a)[kCount][4]) {
#pragma unroll
  for (const auto& step : a) {
    asm volatile("" ::"r"(step[0]), "r"(step[1]), "r"(step[2]), "r"(step[3]));
  }
}

/// Orders writes of registers and shared memory before the products that follow.
__device__ inline void wgmma_begin() { cute::warpgroup_arrive(); }
/// Ends a batch of products.
__device__ inline void wgmma_commit() { cute::warpgroup_commit_batch(); }
/// Waits until at most kPending batches are under way.
template <int kPending>
__device__ inline void wgmma_wait() {
  cute::warpgroup_wait<kPending>();
}

/// acc = (accumulate ? acc : 0) + A B with both operands in shared memory.
template <class Element, int N, Major kA, Major kB>
__device__ inline void wgmma_ss(float (&acc)[N / 2], std::uint64_t a, std::uint64_t b,
                                bool accumulate) {
  using Atom = typename detail::MmaAtoms<Element, N, kA, kB>::SS;
  const auto scale =
      accumulate ? cute::SM90::GMMA::ScaleOut::One : cute::SM90::GMMA::ScaleOut::Zero;
  [&]<std::size_t... I>(std::index_sequence<I...>) { Atom::fma(a, b, acc[I]..., scale); }
  (std::make_index_sequence<N / 2>{});
}

/// acc = (accumulate ? acc : 0) + A B with A, row-major fragments of 16-bit pairs, in registers.
template <class Element, int N, Major kB>
__device__ inline void wgmma_rs(float (&acc)[N / 2], const std::uint32_t (&a)[4], std::uint64_t b,
                                bool accumulate) {
  using Atom = typename detail::MmaAtoms<Element, N, Major::K, kB>::RS;
  const auto scale =
      accumulate ? cute::SM90::GMMA::ScaleOut::One : cute::SM90::GMMA::ScaleOut::Zero;
  [&]<std::size_t... I>(std::index_sequence<I...>) {
    Atom::fma(a[0], a[1], a[2], a[3], b, acc[I]..., scale);
  }
  (std::make_index_sequence<N / 2>{});
}

}  // namespace tandem::cuda
