// The weights of the tokens inside a chunk on each other, from products to panels.
#pragma once

#include "cuda/gla/walk/shared.cuh"
#include "cuda/parts/fragment.cuh"
#include "cuda/parts/wgmma.cuh"

namespace tandem::cuda::gla {

/// Issues the products of the rows of two tiles, [i][j].
template <class Config>
__device__ void multiply_rows(float (&product)[32], const char* i_tile, const char* j_tile) {
  wgmma_begin();
#pragma unroll
  for (int step = 0; step < Config::kKeyDim / 16; ++step) {
    wgmma_ss<typename Config::Element, 64, Major::K, Major::K>(
        product, k_major_descriptor(i_tile, step), k_major_descriptor(j_tile, step), step > 0);
  }
  wgmma_commit();
}

/// Stores this warp's rows of P = decay * mask (.) QKt, rounded, into a panel [i][j]. `kOwnStep`: the
/// 16 columns on the diagonal of these rows.
template <class Config, int kOwnStep>
__device__ void store_weighted_rows(const float (&qk)[32], const ChunkDecay<Config::kChunk>& decay,
                                    int valid, char* p) {
  const int row = fragment_row();
  const float sum[2] = {decay.log2_sum[row], decay.log2_sum[row + 8]};
#pragma unroll
  for (int step = 0; step < Config::kChunk / 16; ++step) {
    std::uint32_t packed[4] = {};
    if (Config::kReverse ? step >= kOwnStep : step <= kOwnStep) {
      float weighted[8];
#pragma unroll
      for (int i = 0; i < 8; i += 2) {
        const int half = i / 2 % 2;  // rows `row` and `row + 8`
        const int j = fragment_column(2 * step + i / 4);
        const float2 sum_j = *reinterpret_cast<const float2*>(&decay.log2_sum[j]);
        const float factor[2] = {fast_exp2(sum[half] - sum_j.x), fast_exp2(sum[half] - sum_j.y)};
#pragma unroll
        for (int k = 0; k < 2; ++k) {
          // why a select of the product: 0 * NaN. A token that the walk meets after i may hold
          // anything.
          const int ahead = Config::kReverse ? j + k - (row + 8 * half) : row + 8 * half - (j + k);
          bool reaches = step != kOwnStep || ahead >= 0;
          if constexpr (Config::kReverse) reaches = reaches && j + k < valid;
          weighted[i + k] = reaches ? factor[k] * qk[8 * step + i + k] : 0.0f;
        }
      }
      accumulator_to_operand<typename Config::Element>(weighted, 0, packed);
    }
    store_rows(p, step, packed);
  }
}

/// P = decay * mask (.) QKt for this thread's fragment, rounded and stored as a panel [i][j]. QKt
/// holds the scale. Tokens from `valid` on belong to another sequence.
template <class Config>
__device__ void store_intra(const float (&qk)[32], const ChunkDecay<Config::kChunk>& decay,
                            int valid, char* p) {
  // why a copy for each warp: without a branch at each step, one step's exponentials run under
  // another's products.
  switch (threadIdx.x % 128 / 32) {
    case 0: return store_weighted_rows<Config, 0>(qk, decay, valid, p);
    case 1: return store_weighted_rows<Config, 1>(qk, decay, valid, p);
    case 2: return store_weighted_rows<Config, 2>(qk, decay, valid, p);
    default: return store_weighted_rows<Config, 3>(qk, decay, valid, p);
  }
}

}  // namespace tandem::cuda::gla
