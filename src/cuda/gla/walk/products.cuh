// The products of the state role of gla_walk_kernel.
#pragma once

#include "cuda/gla/common/products.cuh"
#include "cuda/gla/walk/segments.cuh"
#include "cuda/parts/wgmma.cuh"

namespace tandem::cuda::gla {

/// So many steps of St rounded, 16 columns of K each: the A operand of St Qt.
template <int kSteps>
using StateOperand = std::uint32_t[kSteps][4];

/// Rounds St from step `first` on.
template <class Config, int kSteps>
__device__ void round_state(StateOperand<kSteps>& operand, const StateRegisters<Config>& state,
                            int first) {
  constexpr int kOfTile = StateRegisters<Config>::kSteps;
#pragma unroll
  for (int step = 0; step < kSteps; ++step) {
    accumulator_to_operand<typename Config::Element>(state.tile[(first + step) / kOfTile],
                                                     (first + step) % kOfTile, operand[step]);
  }
}

/// Issues `o` (+)= St Qt over these steps of K.
template <class Config, int kSteps>
__device__ void multiply_state(float (&o)[32], const StateOperand<kSteps>& operand, const char* q,
                               int first) {
  const std::uint64_t of_q = k_major_descriptor(q, 0);
  wgmma_begin();
#pragma unroll
  for (int step = 0; step < kSteps; ++step) {
    wgmma_rs<typename Config::Element, 64, Major::K>(
        o, operand[step], move_descriptor(of_q, k_major_bytes<64>(first + step)), first + step > 0);
  }
  wgmma_commit();
}

/// Issues `o` (+)= Vt Pt. why no descriptor is moved here, as elsewhere (common/products.cuh): the
/// forward at 256 x 128 has no register for it.
template <class Config>
__device__ void multiply_intra(float (&o)[32], const char* v_panel, const char* p,
                               bool accumulate) {
#pragma unroll
  for (int step = 0; step < Config::kChunk / 16; ++step) {
    wgmma_ss<typename Config::Element, 64, Major::MN, Major::K>(
        o, mn_major_descriptor(v_panel, step), k_major_descriptor(p, step), accumulate || step > 0);
  }
  wgmma_commit();
}

/// Issues St += decayed Vt K.
template <class Config>
__device__ void update_state(StateRegisters<Config>& state,
                             const std::uint32_t (&values)[Config::kChunk / 16][4], const char* k) {
  constexpr int kTileBytes = Config::kChunk * Config::kKeyTile * 2;
  const std::uint64_t of_k = mn_major_descriptor(k, 0);
  wgmma_begin();
#pragma unroll
  for (int index = 0; index < StateRegisters<Config>::kTiles; ++index) {
#pragma unroll
    for (int step = 0; step < Config::kChunk / 16; ++step) {
      wgmma_rs<typename Config::Element, Config::kKeyTile, Major::MN>(
          state.tile[index], values[step],
          move_descriptor(of_k, index * kTileBytes + mn_major_bytes(step)), true);
    }
  }
  wgmma_commit();
}

}  // namespace tandem::cuda::gla
