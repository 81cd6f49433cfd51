// The weights of the tokens inside a chunk on each other, from products to panels.
#pragma once

#include "cuda/gla/common/products.cuh"
#include "cuda/gla/walk/shared.cuh"
#include "cuda/parts/fragment.cuh"
#include "cuda/parts/wgmma.cuh"

namespace tandem::cuda::gla {

/// Issues the products of the rows of two tiles, [i][j].
template <class Config>
__device__ void multiply_tiles(float (&product)[32], const char* i_tile, const char* j_tile) {
  wgmma_begin();
  multiply_rows<typename Config::Element, Config::kKeyDim / 16>(product, i_tile, j_tile);
}

/// P = scale * decay * mask (.) QKt for this thread's fragment, rounded and stored as a panel
/// [i][j]; by the decays of `kHeads` heads, each into a panel of its own: step by step, so that one
/// head's exponentials run under the other's. Tokens from `valid` on belong to another sequence.
template <class Config, int kHeads>
__device__ void store_intra(const float (&qk)[32], const ChunkDecay<Config::kChunk>* decay,
                            float scale, int valid, char* p) {
  const int row = fragment_row();
  const int own_step =
      threadIdx.x % 128 / 32;  // the 16 columns on the diagonal of this warp's rows
  float sum[kHeads][2];
#pragma unroll
  for (int head = 0; head < kHeads; ++head) {
    sum[head][0] = decay[head].log2_sum[row];
    sum[head][1] = decay[head].log2_sum[row + 8];
  }
#pragma unroll
  for (int step = 0; step < Config::kChunk / 16; ++step) {
    std::uint32_t packed[kHeads][4] = {};
    if (Config::kReverse ? step >= own_step : step <= own_step) {
      float weighted[kHeads][8];
#pragma unroll
      for (int i = 0; i < 8; i += 2) {
        const int half = i / 2 % 2;  // rows `row` and `row + 8`
        const int j = fragment_column(2 * step + i / 4);
#pragma unroll
        for (int head = 0; head < kHeads; ++head) {
          const float2 sum_j = *reinterpret_cast<const float2*>(&decay[head].log2_sum[j]);
          const float factor[2] = {fast_exp2(sum[head][half] - sum_j.x),
                                   fast_exp2(sum[head][half] - sum_j.y)};
#pragma unroll
          for (int k = 0; k < 2; ++k) {
            // why a select of the product: 0 * NaN. A token that the walk meets after i may hold
            // anything.
            const int ahead =
                Config::kReverse ? j + k - (row + 8 * half) : row + 8 * half - (j + k);
            bool reaches = step != own_step || ahead >= 0;
            if constexpr (Config::kReverse) reaches = reaches && j + k < valid;
            weighted[head][i + k] = reaches ? scale * factor[k] * qk[8 * step + i + k] : 0.0f;
          }
        }
      }
#pragma unroll
      for (int head = 0; head < kHeads; ++head) {
        accumulator_to_operand<typename Config::Element>(weighted[head], 0, packed[head]);
      }
    }
#pragma unroll
    for (int head = 0; head < kHeads; ++head) {
      store_rows(p + head * panel_bytes(Config::kChunk), step, packed[head]);
    }
  }
}

}  // namespace tandem::cuda::gla
