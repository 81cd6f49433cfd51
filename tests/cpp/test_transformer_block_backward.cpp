// transformer_block's backward on the CPU: against the derivatives of the block's definition, what
// the forward saves for it, and what it refuses.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "random_transformer_block.h"
#include "reference/transformer_block.h"
#include "tandem/error.h"

namespace tandem::tools {
namespace {

/// As Llama, Qwen2 and Qwen3 have them; the last with biases, too.
const std::vector<BlockSizes> kSizes = {
    {},
    {.HKV = 4, .biases = true},
    {.HKV = 1, .norms = true},
    {.d = 40, .H = 3, .HKV = 1, .K = 24, .F = 56, .biases = true, .norms = true}};

void run(const TransformerBlockTraining& call) {
  transformer_block_forward(call.forward);
  transformer_block_backward(call.backward);
}

/// The loss whose gradient a backward makes, by the definition.
double loss(const TransformerBlockTraining& call, const std::vector<std::int64_t>& begins) {
  const std::vector<double> d_out = values_of(call.backward.d_out);
  const auto out = reference::transformer_block(call.forward.block, call.forward.x, begins);
  double sum = 0;
  for (std::size_t i = 0; i < d_out.size(); ++i) sum += d_out[i] * out[i];
  return sum;
}

void expect_derivatives(const TransformerBlockTraining& call,
                        const std::vector<std::int64_t>& begins = {}) {
  const auto expect = [&](const char* name, const TensorView& of, const TensorView& gradient) {
    constexpr double kStep = 1e-5;
    auto* values = static_cast<double*>(of.data);
    std::vector<double> expected;
    for (std::int64_t i = 0; i < of.shape.product(); ++i) {
      const double value = values[i];
      values[i] = value + kStep;
      const double above = loss(call, begins);
      values[i] = value - kStep;
      const double below = loss(call, begins);
      values[i] = value;
      expected.push_back((above - below) / (2 * kStep));
    }
    EXPECT_LT(difference(values_of(gradient), expected), 1e-8) << name;
  };
  run(call);
  for_each_transformer_parameter([&](const char* name, auto weight, auto gradient) {
    const std::optional<TensorView> parameter = call.forward.block.*weight;
    if (parameter) expect(name, *parameter, *(call.backward.gradients.*gradient));
  });
  expect("x", call.forward.x, *call.backward.dx);
}

TEST(TransformerBlockBackward, GradientsAreTheDerivativesOfTheDefinition) {
  const BlockSizes small = {.d = 6, .H = 2, .HKV = 1, .K = 8, .F = 5};
  unsigned seed = 6;
  for (const bool biases : {false, true}) {
    for (const bool norms : {false, true}) {
      SCOPED_TRACE(testing::Message() << "biases " << biases << ", norms " << norms);
      BlockSizes sizes = small;
      sizes.biases = biases;
      sizes.norms = norms;
      if (biases) sizes.HKV = 2;
      RandomTransformerBlock random(DType::kFloat64, sizes, ++seed);
      random.block.activation = static_cast<GateActivation>(seed % 3);  // relu has a corner
      expect_derivatives(make_training(random, 2, 5));
      random.block.window = 2;
      expect_derivatives(make_training(random, 1, 5));
      const std::vector<std::int64_t> begins = {0, 3, 3, 8};
      expect_derivatives(make_training(random, 1, 8, random.cu_seqlens(begins)), begins);
    }
  }
}

TEST(TransformerBlockBackward, TakesOneToken) {
  RandomTransformerBlock random(DType::kFloat64,
                                {.d = 6, .H = 2, .HKV = 1, .K = 8, .F = 5, .norms = true}, 11);
  // Of one token the weight of its only key is 1, whatever the query: zeros, exactly or nearly.
  const TransformerBlockTraining call = make_training(random, 1, 1);
  run(call);
  const auto& gradients = call.backward.gradients;
  for (const auto& zero :
       {gradients.q_proj, gradients.k_proj, gradients.q_norm, gradients.k_norm}) {
    EXPECT_THAT(values_of(*zero), testing::Each(testing::DoubleNear(0, 1e-14)));
  }
  constexpr double kStep = 1e-5;
  const std::vector<double> dx = values_of(*call.backward.dx);
  for (std::size_t i = 0; i < dx.size(); ++i) {
    auto& value = static_cast<double*>(call.forward.x.data)[i];
    const double before = value;
    value = before + kStep;
    const double above = loss(call, {});
    value = before - kStep;
    EXPECT_NEAR(dx[i], (above - loss(call, {})) / (2 * kStep), 1e-8);
    value = before;
  }
}

TEST(TransformerBlockBackward, GradientsInEveryDtypeAreThoseOfFp64) {
  const std::pair<DType, double> tolerances[] = {
      {DType::kFloat32, 5e-6}, {DType::kFloat16, 3e-3}, {DType::kBFloat16, 2.4e-2}};
  for (const auto& [dtype, tolerance] : tolerances) {
    unsigned seed = 8;
    for (const BlockSizes& sizes : kSizes) {
      RandomTransformerBlock random(dtype, sizes, ++seed);
      if (seed % 2 == 0) random.block.window = 20;
      const TransformerBlockTraining call = make_training(random, 2, 33);
      const TransformerBlockTraining exact = widened(random, call);
      run(call);
      run(exact);
      for_each_output(call, exact,
                      [&](const char* name, const TensorView& got, const TensorView& right) {
                        EXPECT_LT(difference(values_of(got), values_of(right)), tolerance)
                            << to_string(dtype) << " " << seed << " " << name;
                      });
    }
  }
}

TEST(TransformerBlockBackward, WeightsGradientsMayBeOfFp32) {
  RandomTransformerBlock random(DType::kBFloat16, kSizes[3], 10);
  const TransformerBlockTraining call = make_training(random, 2, 9);
  run(call);
  TransformerBlockTraining wide = call;
  for_each_transformer_parameter([&](const char*, auto, auto gradient) {
    auto& one = wide.backward.gradients.*gradient;
    one = random.zeros(DType::kFloat32, one->shape);
  });
  transformer_block_backward(wide.backward);
  for_each_transformer_parameter([&](const char* name, auto, auto gradient) {
    const TensorView& narrow = *(call.backward.gradients.*gradient);
    const TensorView rounded = random.copy(narrow.dtype, *(wide.backward.gradients.*gradient));
    EXPECT_EQ(values_of(rounded), values_of(narrow)) << name;
  });
}

TEST(TransformerBlockBackward, GradientsAreAddedUpOrLeftOut) {
  RandomTransformerBlock random(DType::kFloat64, kSizes[3], 11);
  const TransformerBlockTraining call = make_training(random, 2, 9);
  run(call);
  TransformerBlockBackwardArgs again = call.backward;
  again.dx = random.zeros(call.backward.dx->shape);
  again.accumulate = true;
  const std::vector<double> dx = values_of(*call.backward.dx);
  for_each_transformer_parameter([&](const char*, auto, auto gradient) {
    again.gradients.*gradient = random.copy(DType::kFloat64, *(call.backward.gradients.*gradient));
  });
  transformer_block_backward(again);
  EXPECT_EQ(values_of(*again.dx), dx);
  for_each_transformer_parameter([&](const char* name, auto weight, auto gradient) {
    const std::vector<double> once = values_of(*(call.backward.gradients.*gradient));
    std::vector<double> twice = once;
    for (double& value : twice) value *= 2;
    EXPECT_LT(difference(values_of(*(again.gradients.*gradient)), twice), 1e-12) << name;
    // Alone, with the same bits.
    TransformerBlockBackwardArgs alone = call.backward;
    alone.dx.reset();
    alone.gradients = {};
    alone.gradients.*gradient =
        random.zeros(std::optional<TensorView>(random.block.*weight)->shape);
    transformer_block_backward(alone);
    EXPECT_EQ(values_of(*(alone.gradients.*gradient)), once) << name;
  });
  TransformerBlockBackwardArgs alone = call.backward;
  alone.dx = random.zeros(call.backward.dx->shape);
  alone.gradients = {};
  transformer_block_backward(alone);
  EXPECT_EQ(values_of(*alone.dx), dx);
}

TEST(TransformerBlockBackward, TakesNoTokens) {
  for (const auto& [B, T] : {std::pair(2, 0), std::pair(0, 5)}) {
    RandomTransformerBlock random(DType::kFloat32, kSizes[3], 12);
    const TransformerBlockTraining call = make_training(random, B, T);
    for_each_transformer_parameter([&](const char*, auto, auto gradient) {
      set_value(*(call.backward.gradients.*gradient), 0, 1);
    });
    transformer_block_forward(call.forward);
    TransformerBlockBackwardArgs added = call.backward;
    added.accumulate = true;
    transformer_block_backward(added);
    for_each_transformer_parameter([&](const char* name, auto, auto gradient) {
      EXPECT_EQ(value_of(*(call.backward.gradients.*gradient), 0), 1) << name;
    });
    transformer_block_backward(call.backward);
    for_each_transformer_parameter([&](const char* name, auto, auto gradient) {
      EXPECT_THAT(values_of(*(call.backward.gradients.*gradient)), testing::Each(0.0)) << name;
    });
  }
}

TEST(TransformerBlockBackward, RunsInTheMemoryItAsksFor) {
  RandomTransformerBlock random(DType::kFloat32, kSizes[3], 13);
  const TransformerBlockTraining call = make_training(random, 1, 7);
  TransformerBlockForwardArgs unsaved = call.forward;
  unsaved.saved.reset();
  unsaved.out = random.zeros(call.forward.out.shape);
  transformer_block_forward(unsaved);
  const DeviceProperties cpu = DeviceProperties::cpu();
  EXPECT_EQ(transformer_block_forward_workspace_bytes(call.forward, cpu), 0U) << "all is saved";
  transformer_block_forward(call.forward);
  EXPECT_EQ(values_of(call.forward.out), values_of(unsaved.out)) << "saved or not, the same bits";
  const std::size_t bytes = transformer_block_backward_workspace_bytes(call.backward, cpu);
  char* const memory = random.aligned(bytes + 1);
  memory[bytes] = 7;
  transformer_block_backward(call.backward, {.workspace = {memory, bytes}});
  EXPECT_EQ(memory[bytes], 7);
  EXPECT_THROW(transformer_block_backward(call.backward, {.workspace = {memory, bytes - 1}}),
               InvalidArgument);
}

template <class Args>
using Spoilt = std::vector<std::pair<std::function<void(Args&)>, std::string>>;

template <class Args>
void expect_refusals(const Spoilt<Args>& spoilt, const Args& right,
                     void (*run)(const Args&, const Context&)) {
  for (const auto& [spoil, text] : spoilt) {
    Args args = right;
    spoil(args);
    try {
      run(args, {});
      ADD_FAILURE() << "was not refused: " << text;
    } catch (const InvalidArgument& error) {
      EXPECT_THAT(error.what(), testing::StartsWith(text));
    }
  }
}

TEST(TransformerBlockBackward, AForwardRefusesMemoryThatItCannotSaveIn) {
  RandomTransformerBlock random(DType::kFloat32, {}, 14);
  const TransformerBlockTraining call = make_training(random, 1, 7);
  using Args = TransformerBlockForwardArgs;
  const Spoilt<Args> spoilt = {
      {[](Args& args) { args.saved->bytes -= 1; },
       "[transformer_block_forward] saved must have at least "},
      {[](Args& args) { args.saved->data = static_cast<char*>(args.saved->data) + 4; },
       "[transformer_block_forward] saved must be aligned to 256 bytes"},
      {[](Args& args) { args.out = args.x; },
       "[transformer_block_forward] out must not overlap x, got views that share memory"},
      {[](Args& args) { args.out.data = args.saved->data; },
       "[transformer_block_forward] saved must not overlap out, got views that share memory"},
      {[](Args& args) { args.block.input_layernorm.data = args.saved->data; },
       "[transformer_block_forward] saved must not overlap input_layernorm"}};
  expect_refusals<Args>(spoilt, call.forward, transformer_block_forward);
  EXPECT_THAT(values_of(call.forward.out), testing::Each(0.0));
}

TEST(TransformerBlockBackward, RefusesWhatItCannotRunAndWritesNothing) {
  RandomTransformerBlock random(DType::kFloat32, {}, 15);
  const TransformerBlockTraining call = make_training(random, 1, 7);
  const TensorView cu_seqlens = *random.cu_seqlens({0, 7});
  transformer_block_forward(call.forward);
  using Args = TransformerBlockBackwardArgs;
  const Spoilt<Args> spoilt = {
      {[](Args& args) { args.block.heads = 3; },
       "[transformer_block_backward] heads must divide q_proj's 64 rows, got 3"},
      {[](Args& args) { args.saved = {}; },
       "[transformer_block_backward] saved must have at least "},
      {[](Args& args) { args.d_out.shape[1] = 6; },
       "[transformer_block_backward] d_out must have shape x's = [1,7,64], got [1,6,64]"},
      {[](Args& args) { args.dx->dtype = DType::kFloat16; },
       "[transformer_block_backward] dx must have dtype fp32, got fp16"},
      {[](Args& args) { args.dx = args.d_out; },
       "[transformer_block_backward] dx must not overlap d_out, got views that share memory"},
      {[](Args& args) { args.gradients.q_proj = args.gradients.k_proj; },
       "[transformer_block_backward] gradients.k_proj must not overlap gradients.q_proj"},
      {[](Args& args) { args.gradients.down_proj = args.block.down_proj; },
       "[transformer_block_backward] gradients.down_proj must not overlap down_proj"},
      {[](Args& args) { args.gradients.input_layernorm->data = args.saved.data; },
       "[transformer_block_backward] gradients.input_layernorm must not overlap saved"},
      {[](Args& args) { args.gradients.input_layernorm->shape[0] = 3; },
       "[rms_norm_gemm_backward] d_norm_weight must have shape"},
      {[](Args& args) { args.gradients.q_bias.swap(args.gradients.input_layernorm); },
       "[rms_norm_gemm_backward] d_bias0 needs bias0"},
      {[](Args& args) { args.gradients.up_proj->shape[0] = 95; },
       "[gemm_swiglu_backward] d_up_weight must have shape"},
      {[&](Args& args) { args.cu_seqlens = cu_seqlens, args.cu_seqlens->dtype = DType::kFloat32; },
       "[attention_backward] cu_seqlens_q must have dtype int32, got fp32"}};
  expect_refusals<Args>(spoilt, call.backward, transformer_block_backward);
  EXPECT_THAT(values_of(*call.backward.dx), testing::Each(0.0));
  for_each_transformer_parameter([&](const char* name, auto, auto gradient) {
    const auto& one = call.backward.gradients.*gradient;
    EXPECT_THAT(one ? values_of(*one) : std::vector<double>(), testing::Each(0.0)) << name;
  });
}

}  // namespace
}  // namespace tandem::tools
