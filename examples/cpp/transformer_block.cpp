// A layer of a transformer with a key/value cache: a prompt in one call, then token by token, on
// the CPU in fp32. transformer_block [--tiny]. On a GPU the views are of its memory with
// Device::cuda(0), the dtype is bf16 or fp16, the Context holds the stream, and the step may be
// captured once and replayed for every token.
#include <tandem/tandem.h>

#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <deque>
#include <exception>
#include <random>
#include <string_view>
#include <vector>

using tandem::DType, tandem::Dims, tandem::TensorView;

namespace {

/// Owns the memory of tensors.
class Tensors {
 public:
  TensorView zeros(const Dims& shape, DType dtype = DType::kFloat32) {
    auto& memory = memory_.emplace_back(static_cast<std::size_t>(shape.product()));
    return TensorView::contiguous(memory.data(), dtype, shape);
  }
  TensorView random(const Dims& shape, float mean, float deviation) {
    std::normal_distribution<float> normal(mean, deviation);
    const TensorView view = zeros(shape);
    for (float& value : memory_.back()) value = normal(generator_);
    return view;
  }
  TensorView matrix(std::int64_t rows, std::int64_t columns) {
    return random({rows, columns}, 0, 1 / std::sqrt(static_cast<float>(columns)));
  }

 private:
  std::mt19937 generator_{1};
  std::deque<std::vector<float>> memory_;
};

float* numbers(const TensorView& view) { return static_cast<float*>(view.data); }

/// Tokens [1,count,d] of x [1,T,d], from `begin` on.
TensorView tokens(const TensorView& x, std::int64_t begin, std::int64_t count) {
  return TensorView::contiguous(numbers(x) + begin * x.shape[2], x.dtype, {1, count, x.shape[2]});
}

/// One token [1,d].
TensorView token(const TensorView& x, std::int64_t which) {
  return TensorView::contiguous(numbers(x) + which * x.shape[2], x.dtype, {1, x.shape[2]});
}

tandem::TransformerBlock make_block(Tensors& tensors, std::int64_t d, std::int64_t positions) {
  constexpr std::int64_t kHeadWidth = 32;
  const std::int64_t heads = d / kHeadWidth, F = 3 * d;
  tandem::TransformerBlock block;
  block.heads = heads;
  block.key_value_heads = heads / 2;  // each is read by two heads
  block.input_layernorm = tensors.random({d}, 1, 0.1F);
  block.q_proj = tensors.matrix(d, d);
  block.k_proj = tensors.matrix(d / 2, d);
  block.v_proj = tensors.matrix(d / 2, d);
  block.rope_cos = tensors.zeros({positions, kHeadWidth / 2});
  block.rope_sin = tensors.zeros({positions, kHeadWidth / 2});
  for (std::int64_t p = 0; p < positions; ++p) {
    for (std::int64_t j = 0; j < kHeadWidth / 2; ++j) {
      const float angle = float(p) * std::pow(10000.0F, -2.0F * float(j) / float(kHeadWidth));
      numbers(block.rope_cos)[p * kHeadWidth / 2 + j] = std::cos(angle);
      numbers(block.rope_sin)[p * kHeadWidth / 2 + j] = std::sin(angle);
    }
  }
  block.o_proj = tensors.matrix(d, d);
  block.post_attention_layernorm = tensors.random({d}, 1, 0.1F);
  block.gate_proj = tensors.matrix(F, d);
  block.up_proj = tensors.matrix(F, d);
  block.down_proj = tensors.matrix(d, F);
  return block;
}

int run(bool tiny) {
  const std::int64_t d = tiny ? 128 : 1024, prompt = tiny ? 24 : 192, all = tiny ? 32 : 256;
  Tensors tensors;
  const tandem::TransformerBlock block = make_block(tensors, d, all);
  const TensorView x = tensors.random({1, all, d}, 0, 1);
  const TensorView at_once = tensors.zeros(x.shape), in_steps = tensors.zeros(x.shape);
  tandem::transformer_block_forward({.block = block, .x = x, .out = at_once});

  const Dims keys = {1, all, block.key_value_heads, 32};
  const tandem::KeyValueCache cache = {tensors.zeros(keys), tensors.zeros(keys),
                                       tensors.zeros({1}, DType::kInt32)};
  tandem::transformer_block_forward({.block = block,
                                     .x = tokens(x, 0, prompt),
                                     .cache = cache,
                                     .out = tokens(in_steps, 0, prompt)});
  const auto begin = std::chrono::steady_clock::now();
  for (std::int64_t t = prompt; t < all; ++t) {
    tandem::transformer_block_step(
        {.block = block, .x = token(x, t), .cache = cache, .out = token(in_steps, t)});
  }
  const std::chrono::duration<double, std::milli> took = std::chrono::steady_clock::now() - begin;

  double largest = 0, difference = 0;
  for (std::int64_t i = 0; i < all * d; ++i) {
    largest = std::fmax(largest, std::fabs(numbers(at_once)[i]));
    difference = std::fmax(difference, std::fabs(numbers(at_once)[i] - numbers(in_steps)[i]));
  }
  std::printf(
      "%.3g ms a token; outputs up to %.3g; at once and in steps they differ by up to %.1e\n",
      took.count() / double(all - prompt), largest, difference);
  return difference < 1e-5 * largest ? 0 : 1;
}

}  // namespace

int main(int count, char** arguments) {
  try {
    return run(count > 1 && std::string_view(arguments[1]) == "--tiny");
  } catch (const std::exception& error) {  // names op, argument, what is expected and what was got
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}
