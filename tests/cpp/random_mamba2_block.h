// A mamba2_block with random parameters on the host, for its tests.
#pragma once

#include <cstdint>

#include "core/real.h"
#include "cpp/random_tensors.h"
#include "tandem/blocks/mamba2_block.h"

namespace tandem::tools {

struct Mamba2BlockSizes {
  std::int64_t d = 48, H = 4, P = 16, G = 2, N = 8, W = 4;
  bool conv_bias = true;
};

class RandomMamba2Block : public RandomTensors {
 public:
  RandomMamba2Block(DType dtype, const Mamba2BlockSizes& sizes, unsigned seed)
      : RandomTensors(dtype, seed), sizes_(sizes) {
    const auto& [d, H, P, G, N, W, conv_bias] = sizes;
    const std::int64_t channels = H * P + 2 * G * N;
    block.heads = H;
    block.groups = G;
    block.input_norm = normal({d}, 1, 0.1);
    block.in_proj = matrix(H * P + channels + H, d);
    block.conv1d_weight = normal({channels, W}, 0, 0.5);
    if (conv_bias) block.conv1d_bias = normal({channels}, 0, 0.3);
    block.dt_bias = normal({H}, -2, 1);
    block.A_log = normal({H}, 0.5, 0.5);
    block.D = normal({H}, 1, 0.3);
    block.norm = normal({H * P}, 1, 0.1);
    block.out_proj = matrix(d, H * P);
  }

  /// Of `count` sequences.
  Mamba2States states(std::int64_t count, double deviation) {
    const auto& [d, H, P, G, N, W, conv_bias] = sizes_;
    return {normal({count, H * P + 2 * G * N, W - 1}, 0, deviation),
            copy(real_dtype(dtype()), normal({count, H, N, P}, 0, deviation))};
  }

  Mamba2Block block;

 private:
  Mamba2BlockSizes sizes_;
};

}  // namespace tandem::tools
