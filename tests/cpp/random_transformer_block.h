// A transformer_block with random parameters on the host, for its tests.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <random>
#include <vector>

#include "core/float16.h"
#include "core/real.h"
#include "reference/element.h"
#include "tandem/blocks/transformer_block.h"

namespace tandem::tools {

struct BlockSizes {
  std::int64_t d = 64, H = 4, HKV = 2, K = 16, F = 96, positions = 64;
  bool biases = false, norms = false;  // Qwen2's, Qwen3's
};

class RandomTransformerBlock {
 public:
  RandomTransformerBlock(DType dtype, const BlockSizes& sizes, unsigned seed)
      : sizes_(sizes), dtype_(dtype), generator_(seed) {
    const auto& [d, H, HKV, K, F, positions, biases, norms] = sizes;
    const auto matrix = [&](std::int64_t rows, std::int64_t columns) {
      return normal({rows, columns}, 0, 1 / std::sqrt(static_cast<double>(columns)));
    };
    block.heads = H;
    block.key_value_heads = HKV;
    block.input_layernorm = normal({d}, 1, 0.1);
    block.q_proj = matrix(H * K, d);
    block.k_proj = matrix(HKV * K, d);
    block.v_proj = matrix(HKV * K, d);
    if (biases) {
      block.q_bias = normal({H * K}, 0, 0.3);
      block.k_bias = normal({HKV * K}, 0, 0.3);
      block.v_bias = normal({HKV * K}, 0, 0.3);
      block.o_bias = normal({d}, 0, 0.3);
    }
    if (norms) {
      block.q_norm = normal({K}, 1, 0.1);
      block.k_norm = normal({K}, 1, 0.1);
    }
    block.rope_cos = zeros(real_dtype(dtype), {positions, K / 2});
    block.rope_sin = zeros(real_dtype(dtype), {positions, K / 2});
    for (std::int64_t i = 0; i < positions * K / 2; ++i) {
      const double angle = static_cast<double>(i / (K / 2)) *
                           std::pow(10000, -2.0 * static_cast<double>(i % (K / 2)) / K);
      set(block.rope_cos, i, std::cos(angle));
      set(block.rope_sin, i, std::sin(angle));
    }
    block.o_proj = matrix(d, H * K);
    block.post_attention_layernorm = normal({d}, 1, 0.1);
    block.gate_proj = matrix(F, d);
    block.up_proj = matrix(F, d);
    block.down_proj = matrix(d, F);
  }

  TensorView zeros(DType dtype, const Dims& shape) {
    // why doubles: aligned to every element.
    auto& memory = memory_.emplace_back(shape.product() * size_of(dtype) / 8 + 1);
    return TensorView::contiguous(memory.data(), dtype, shape);
  }
  TensorView zeros(const Dims& shape) { return zeros(dtype_, shape); }
  TensorView normal(const Dims& shape, double mean, double deviation) {
    std::normal_distribution<double> values(mean, deviation);
    const TensorView view = zeros(shape);
    for (std::int64_t i = 0; i < shape.product(); ++i) set(view, i, values(generator_));
    return view;
  }
  KeyValueCache cache(std::int64_t B, std::int64_t capacity) {
    const Dims shape = {B, capacity, sizes_.HKV, sizes_.K};
    return {zeros(shape), zeros(shape), zeros(DType::kInt32, {B})};
  }

  TransformerBlock block;

 private:
  static void set(const TensorView& view, std::int64_t i, double value) {
    const auto narrow = static_cast<float>(value);
    switch (view.dtype) {
      case DType::kBFloat16:
        static_cast<BFloat16*>(view.data)[i] = from_float<BFloat16>(narrow);
        return;
      case DType::kFloat16:
        static_cast<Float16*>(view.data)[i] = from_float<Float16>(narrow);
        return;
      case DType::kFloat64: static_cast<double*>(view.data)[i] = value; return;
      default: static_cast<float*>(view.data)[i] = narrow;
    }
  }

  BlockSizes sizes_;
  DType dtype_;
  std::mt19937 generator_;
  std::deque<std::vector<double>> memory_;
};

inline std::vector<double> values_of(const TensorView& view) {
  std::vector<double> values;
  for (std::int64_t i = 0; i < view.shape.product(); ++i) {
    values.push_back(reference::element(view.dtype, view.data, i));
  }
  return values;
}

/// Relative root mean square of the difference; NaN if there is one.
inline double difference(const std::vector<double>& got, const std::vector<double>& expected) {
  if (got.size() != expected.size()) return NAN;
  double error = 0, norm = 0;
  for (std::size_t i = 0; i < got.size(); ++i) {
    error += (got[i] - expected[i]) * (got[i] - expected[i]);
    norm += expected[i] * expected[i];
  }
  return std::sqrt(error / norm);
}

}  // namespace tandem::tools
