// tandem_block_times [B T d H]: times the blocks on a GPU in bf16, as `tandem bench` times ops:
// medians over replays of a captured graph, random data, cold L2.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <deque>
#include <exception>
#include <functional>
#include <random>
#include <string>
#include <vector>

#include "cli/calls/gpu.h"
#include "cli/calls/measure.h"
#include "core/float16.h"
#include "tandem/tandem.h"

namespace tandem::tools {
namespace {

constexpr int kReplays = 50;

struct Shape {
  std::int64_t B = 8, T = 4096, d = 2048, H = 16;
};

/// Tensors on the GPU, which live as long as this.
class Tensors {
 public:
  TensorView empty(DType dtype, const Dims& shape) {
    const std::int64_t bytes = shape.product() * size_of(dtype);
    return TensorView::contiguous(memory(bytes), dtype, shape, Device::cuda());
  }
  TensorView empty(const Dims& shape) { return empty(DType::kBFloat16, shape); }
  /// Of mean 0 but where one is given, and this deviation.
  TensorView random(const Dims& shape, float deviation, float mean = 0) {
    std::uniform_real_distribution<float> values(-1.7F, 1.7F);
    std::vector<BFloat16> host(static_cast<std::size_t>(shape.product()));
    for (BFloat16& one : host) one = from_float<BFloat16>(mean + deviation * values(generator_));
    const TensorView view = empty(shape);
    gpu::upload(view.data, host.data(), host.size() * sizeof(BFloat16));
    gpu::synchronize(0);  // the blocks' stream does not wait for the default one
    return view;
  }
  TensorView matrix(std::int64_t rows, std::int64_t columns) {
    return random({rows, columns}, 1 / std::sqrt(static_cast<float>(columns)));
  }
  void* memory(std::int64_t bytes) {
    bytes_ += static_cast<std::size_t>(bytes);
    return memory_.emplace_back(0, static_cast<std::size_t>(bytes)).data();
  }
  std::size_t bytes() const { return bytes_; }

 private:
  std::minstd_rand generator_{1};
  std::deque<gpu::Memory> memory_;
  std::size_t bytes_ = 0;
};

/// A call on tensors of its own.
struct Call {
  std::size_t workspace_bytes;
  std::function<void(const Context&)> run;
};

/// Times calls that `make` makes, each on its own tensors: as many as leave nothing in the L2.
void report(const std::string& name, const std::function<Call(Tensors&)>& make) {
  const DeviceProperties& device = device_properties(Device::cuda());
  Tensors tensors;
  std::vector<Call> calls;
  while (calls.empty() || tensors.bytes() < 5 * device.l2_bytes) calls.push_back(make(tensors));
  const std::size_t bytes = calls.front().workspace_bytes;
  const Workspace workspace = {tensors.memory(static_cast<std::int64_t>(bytes)), bytes};
  const auto run = [&](int set, void* stream) {
    calls[static_cast<std::size_t>(set)].run({.stream = {stream}, .workspace = workspace});
  };
  const int sets = static_cast<int>(calls.size());
  const Timing timing = summarize(gpu::time(0, {{run, sets}}, kReplays).front());
  fmt::print("{:<40} {:>10.1f} us  (p10 {:.1f}, p90 {:.1f})\n", name, timing.median_us,
             timing.p10_us, timing.p90_us);
  std::fflush(stdout);
}

GlaBlock make_gla_block(Tensors& tensors, const Shape& s) {
  GlaBlock block;
  block.heads = s.H;
  block.attn_norm = tensors.random({s.d}, 0.1F, 1);
  for (TensorView GlaBlock::*one : {&GlaBlock::q_proj, &GlaBlock::k_proj, &GlaBlock::v_proj,
                                    &GlaBlock::g_proj, &GlaBlock::o_proj}) {
    block.*one = tensors.matrix(s.d, s.d);
  }
  block.gk_proj = tensors.matrix(s.H, s.d);
  block.gk_bias = tensors.random({s.H}, 1, 1);
  block.g_norm_swish_gate = tensors.random({s.d / s.H}, 0.1F, 1);
  return block;
}

enum class Pass { kForward, kBoth };

Call gla_block(Tensors& tensors, const Shape& s, Pass pass) {
  const Dims tokens = {s.B, s.T, s.d};
  GlaBlockForwardArgs forward = {.block = make_gla_block(tensors, s),
                                 .x = tensors.random(tokens, 1),
                                 .out = tensors.empty(tokens)};
  const DeviceProperties& device = device_properties(Device::cuda());
  if (pass == Pass::kForward) {
    return {gla_block_forward_workspace_bytes(forward, device),
            [forward](const Context& context) { gla_block_forward(forward, context); }};
  }
  const std::size_t bytes = gla_block_saved_bytes(forward);
  forward.saved = {tensors.memory(static_cast<std::int64_t>(bytes)), bytes};
  const auto like = [&](const TensorView& view) { return tensors.empty(view.shape); };
  const GlaBlock& block = forward.block;
  const GlaBlockBackwardArgs backward = {
      .block = block,
      .x = forward.x,
      .saved = *forward.saved,
      .d_out = tensors.random(tokens, 1),
      .dx = tensors.empty(tokens),
      .gradients = {like(block.attn_norm), like(block.q_proj), like(block.k_proj),
                    like(block.v_proj), like(block.g_proj), like(block.gk_proj),
                    like(block.gk_bias), like(block.g_norm_swish_gate), like(block.o_proj)}};
  return {std::max(gla_block_forward_workspace_bytes(forward, device),
                   gla_block_backward_workspace_bytes(backward, device)),
          [forward, backward](const Context& context) {
            gla_block_forward(forward, context);
            gla_block_backward(backward, context);
          }};
}

Call gla_block_token(Tensors& tensors, const Shape& s) {
  const GlaBlockStepArgs step = {
      .block = make_gla_block(tensors, s),
      .x = tensors.random({s.B, s.d}, 1),
      .state = tensors.empty(DType::kFloat32, {s.B, s.H, s.d / s.H, s.d / s.H}),
      .out = tensors.empty({s.B, s.d})};
  Tensors prompt;  // for a state that is none of zeros
  gla_block_forward({.block = step.block,
                     .x = prompt.random({s.B, 64, s.d}, 1),
                     .final_state = step.state,
                     .out = prompt.empty({s.B, 64, s.d})});
  return {gla_block_step_workspace_bytes(step, device_properties(Device::cuda())),
          [step](const Context& context) { gla_block_step(step, context); }};
}

/// With a state of 128 and heads of 64 columns, twice as wide as the tokens, as Mamba-2's models.
Call mamba2_block(Tensors& tensors, const Shape& s, Pass pass) {
  const std::int64_t inner = 2 * s.d, H = inner / 64, channels = inner + 2 * 128;
  const Dims tokens = {s.B, s.T, s.d};
  Mamba2Block block;
  block.heads = H;
  block.input_norm = tensors.random({s.d}, 0.1F, 1);
  block.in_proj = tensors.matrix(inner + channels + H, s.d);
  block.conv1d_weight = tensors.random({channels, 4}, 0.5F);
  block.conv1d_bias = tensors.random({channels}, 0.1F);
  block.dt_bias = tensors.random({H}, 1, -3);
  block.A_log = tensors.random({H}, 0.5F, 1);
  block.D = tensors.random({H}, 0.1F, 1);
  block.norm = tensors.random({inner}, 0.1F, 1);
  block.out_proj = tensors.matrix(s.d, inner);
  Mamba2BlockForwardArgs forward = {
      .block = block, .x = tensors.random(tokens, 1), .out = tensors.empty(tokens)};
  const DeviceProperties& device = device_properties(Device::cuda());
  if (pass == Pass::kForward) {
    return {mamba2_block_forward_workspace_bytes(forward, device),
            [forward](const Context& context) { mamba2_block_forward(forward, context); }};
  }
  const std::size_t bytes = mamba2_block_saved_bytes(forward);
  forward.saved = {tensors.memory(static_cast<std::int64_t>(bytes)), bytes};
  const auto like = [&](const TensorView& view) { return tensors.empty(view.shape); };
  const Mamba2BlockBackwardArgs backward = {
      .block = block,
      .x = forward.x,
      .saved = *forward.saved,
      .d_out = tensors.random(tokens, 1),
      .dx = tensors.empty(tokens),
      .gradients = {like(block.input_norm), like(block.in_proj), like(block.conv1d_weight),
                    like(*block.conv1d_bias), like(block.dt_bias), like(block.A_log), like(block.D),
                    like(block.norm), like(block.out_proj)}};
  return {std::max(mamba2_block_forward_workspace_bytes(forward, device),
                   mamba2_block_backward_workspace_bytes(backward, device)),
          [forward, backward](const Context& context) {
            mamba2_block_forward(forward, context);
            mamba2_block_backward(backward, context);
          }};
}

Call transformer_block(Tensors& tensors, const Shape& s, Pass pass) {
  const std::int64_t K = s.d / s.H, F = 4 * s.d;
  const Dims tokens = {s.B, s.T, s.d};
  TransformerBlock block;
  block.heads = block.key_value_heads = s.H;
  block.input_layernorm = tensors.random({s.d}, 0.1F, 1);
  block.q_proj = tensors.matrix(s.d, s.d);
  block.k_proj = tensors.matrix(s.d, s.d);
  block.v_proj = tensors.matrix(s.d, s.d);
  block.rope_cos = tensors.random({s.T, K / 2}, 0.6F);
  block.rope_sin = tensors.random({s.T, K / 2}, 0.6F);
  block.o_proj = tensors.matrix(s.d, s.d);
  block.post_attention_layernorm = tensors.random({s.d}, 0.1F, 1);
  block.gate_proj = tensors.matrix(F, s.d);
  block.up_proj = tensors.matrix(F, s.d);
  block.down_proj = tensors.matrix(s.d, F);
  TransformerBlockForwardArgs forward = {
      .block = block, .x = tensors.random(tokens, 1), .out = tensors.empty(tokens)};
  const DeviceProperties& device = device_properties(Device::cuda());
  if (pass == Pass::kForward) {
    return {transformer_block_forward_workspace_bytes(forward, device),
            [forward](const Context& context) { transformer_block_forward(forward, context); }};
  }
  const std::size_t bytes = transformer_block_saved_bytes(forward);
  forward.saved = {tensors.memory(static_cast<std::int64_t>(bytes)), bytes};
  const auto like = [&](const TensorView& view) { return tensors.empty(view.shape); };
  const TransformerBlockBackwardArgs backward = {
      .block = block,
      .x = forward.x,
      .saved = *forward.saved,
      .d_out = tensors.random(tokens, 1),
      .dx = tensors.empty(tokens),
      .gradients = {.input_layernorm = like(block.input_layernorm),
                    .q_proj = like(block.q_proj),
                    .k_proj = like(block.k_proj),
                    .v_proj = like(block.v_proj),
                    .o_proj = like(block.o_proj),
                    .post_attention_layernorm = like(block.post_attention_layernorm),
                    .gate_proj = like(block.gate_proj),
                    .up_proj = like(block.up_proj),
                    .down_proj = like(block.down_proj)}};
  return {std::max(transformer_block_forward_workspace_bytes(forward, device),
                   transformer_block_backward_workspace_bytes(backward, device)),
          [forward, backward](const Context& context) {
            transformer_block_forward(forward, context);
            transformer_block_backward(backward, context);
          }};
}

int run(int count, char** arguments) {
  Shape s;
  const std::array numbers = {&s.B, &s.T, &s.d, &s.H};
  for (int i = 1; i < count && i <= 4; ++i) *numbers[i - 1] = std::stoll(arguments[i]);
  fmt::print("{}, bf16, B{} T{} d{} H{}\n", device_properties(Device::cuda()).name, s.B, s.T, s.d,
             s.H);
  report("gla_block forward", [&](Tensors& to) { return gla_block(to, s, Pass::kForward); });
  report("gla_block forward + backward",
         [&](Tensors& to) { return gla_block(to, s, Pass::kBoth); });
  report("gla_block one token", [&](Tensors& to) { return gla_block_token(to, s); });
  report("mamba2_block forward", [&](Tensors& to) { return mamba2_block(to, s, Pass::kForward); });
  report("mamba2_block forward + backward",
         [&](Tensors& to) { return mamba2_block(to, s, Pass::kBoth); });
  report("transformer_block forward",
         [&](Tensors& to) { return transformer_block(to, s, Pass::kForward); });
  report("transformer_block forward + backward",
         [&](Tensors& to) { return transformer_block(to, s, Pass::kBoth); });
  return 0;
}

}  // namespace
}  // namespace tandem::tools

int main(int count, char** arguments) {
  try {
    return tandem::tools::run(count, arguments);
  } catch (const std::exception& error) {
    fmt::print(stderr, "{}\n", error.what());
    return 1;
  }
}
