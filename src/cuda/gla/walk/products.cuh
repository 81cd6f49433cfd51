// The products of the state role of gla_walk_kernel.
#pragma once

#include "cuda/gla/walk/segments.cuh"
#include "cuda/parts/wgmma.cuh"

namespace tandem::cuda::gla {

/// Tile `index` of St rounded, the A operand of St Qt.
template <class Config>
using StateOperand = std::uint32_t[StateRegisters<Config>::kSteps][4];

template <class Config>
__device__ void round_state(StateOperand<Config>& operand, const StateRegisters<Config>& state,
                            int index) {
#pragma unroll
  for (int step = 0; step < StateRegisters<Config>::kSteps; ++step) {
    accumulator_to_operand<typename Config::Element>(state.tile[index], step, operand[step]);
  }
}

/// Issues `o` (+)= St Qt over one tile of K.
template <class Config>
__device__ void multiply_state(float (&o)[32], const StateOperand<Config>& operand, const char* q,
                               int index) {
  constexpr int kSteps = StateRegisters<Config>::kSteps;
  wgmma_begin();
#pragma unroll
  for (int step = 0; step < kSteps; ++step) {
    wgmma_rs<typename Config::Element, 64, Major::K>(
        o, operand[step], k_major_descriptor(q, kSteps * index + step), index + step > 0);
  }
  wgmma_commit();
}

/// Issues `o` (+)= Vt Pt.
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
  wgmma_begin();
#pragma unroll
  for (int index = 0; index < StateRegisters<Config>::kTiles; ++index) {
    const char* k_tile = k + index * Config::kChunk * Config::kKeyTile * 2;
#pragma unroll
    for (int step = 0; step < Config::kChunk / 16; ++step) {
      wgmma_rs<typename Config::Element, Config::kKeyTile, Major::MN>(
          state.tile[index], values[step], mn_major_descriptor(k_tile, step), true);
    }
  }
  wgmma_commit();
}

}  // namespace tandem::cuda::gla
