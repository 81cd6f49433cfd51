// mamba2_block, forward and step: what its ops are called with, and in which order. Host only.
#include "tandem/blocks/mamba2_block.h"

#include <algorithm>

#include "blocks/buffers.h"
#include "blocks/check.h"
#include "blocks/mamba2_parts.h"
#include "blocks/run.h"
#include "ops/causal_conv1d.h"
#include "ops/gla.h"
#include "ops/mamba2.h"
#include "ops/rms_norm.h"
#include "tandem/ops/gated_output.h"
#include "tandem/ops/projection.h"

namespace tandem {
namespace mamba2 {
namespace {

/// A forward or a step. x and out are [B,T,d], of a step with T = 1.
struct ForwardCall {
  const char* name;
  const Mamba2Block& block;
  TensorView x, out;
  std::optional<TensorView> cu_seqlens = {};
  std::optional<Mamba2States> initial_states = {}, final_states = {};
  std::optional<Mamba2States> states = {};  // of a step
  std::optional<SavedMemory> saved = {};
};

/// Checks a forward's tensors that no op sees together; returns where it saves, if it does.
std::optional<TensorView> check_forward(const ForwardCall& call, const Sizes& n) {
  const Argument out = {call.name, "out", call.out};
  check_tokens(out, "[B,T,d]", 3);
  check_shape(out, "x's", call.x.shape);
  std::optional<TensorView> saved;
  if (call.saved) {
    saved = checked_saved(call.name, *call.saved, saved_bytes(n, call.x), call.x.device);
  }
  Arguments inputs(call.name), outputs(call.name);
  inputs.add("x", call.x);
  inputs.add(call.block);
  inputs.add("cu_seqlens", call.cu_seqlens);
  if (call.initial_states) inputs.add("initial_states.conv", call.initial_states->conv);
  outputs.add("out", call.out);
  outputs.add("saved", saved);
  outputs.add("states.conv", "states.state", call.states);
  outputs.add("final_states.conv", "final_states.state", call.final_states);
  check_apart(outputs.all(), inputs.all());
  if (!call.initial_states) return saved;
  // gla checks it beside final_states.state, which may be the same.
  Arguments others(call.name);
  others.add("out", call.out);
  others.add("saved", saved);
  if (call.final_states) others.add("final_states.conv", call.final_states->conv);
  check_apart(others.all(), {{call.name, "initial_states.state", call.initial_states->state}});
  return saved;
}

/// The forward's ops in their order, on tensors of the caller and in a workspace at `data`.
struct Forward {
  RmsNormForwardProblem norm;
  ProjectionForwardArgs projection;
  CausalConv1dForwardArgs convolution;
  std::optional<CausalConv1dStepArgs> convolution_step;  // in the place of convolution
  DiscretizeProblem discretized;
  GlaForwardArgs gla;
  std::optional<GlaStepArgs> step;  // in the place of gla
  SkipProblem skip;
  GatedOutputForwardArgs output;
  std::size_t bytes = 0;  // of the tensors between them

  Forward(const ForwardCall& call, char* data);
  std::size_t op_bytes(const DeviceProperties& device, bool batch_invariant) const;
  void run(const Context& context) const;
};

Forward::Forward(const ForwardCall& call, char* data) {
  const Mamba2Block& block = call.block;
  const Sizes n = sizes_of(call.name, block, call.x);
  const std::optional<TensorView> saved = check_forward(call, n);
  const DType dtype = call.x.dtype;
  const Device device = call.x.device;
  const std::int64_t inner = n.inner(), channels = n.channels();
  Buffers buffers(data, device);
  const TensorView normed = buffers.take(dtype, {n.rows(), n.d});
  Buffers in_saved(saved ? static_cast<char*>(saved->data) : nullptr, device);
  const Kept kept(saved ? in_saved : buffers, n, dtype, saved.has_value());
  const auto& [z, before, xBC, dt, v, log_decay, o, rstd, dt_slope, gated, group_rstd] = kept;
  bytes = buffers.bytes();

  const TensorView tokens = as_rows(call.x);
  norm = {.dtype = dtype,
          .device = device,
          .M = n.rows(),
          .d = static_cast<int>(n.d),
          .x = {tokens.data, n.d},
          .norm = {block.input_norm.data, block.input_norm.dtype, block.eps},
          .n = {normed.data, n.d},
          .kept_rstd = rstd ? static_cast<float*>(rstd->data) : nullptr};
  ProjectionSegment steps = {.weight = rows_of(block.in_proj, inner + channels, n.H),
                             .bias = block.dt_bias,
                             .activation = Activation::kSoftplus,
                             .out = dt,
                             .slope = dt_slope};
  if (block.dt_min != 0) steps.min = block.dt_min;
  if (!std::isinf(block.dt_max)) steps.max = block.dt_max;
  projection = {
      .x = normed,
      .segments = {{.weight = rows_of(block.in_proj, 0, inner), .out = z},
                   {.weight = rows_of(block.in_proj, inner, channels), .out = as_rows(before)},
                   steps}};

  const TensorView B = heads_of(xBC, inner, n.G, n.N);
  const TensorView C = heads_of(xBC, inner + n.G * n.N, n.G, n.N);
  static_cast<Mamba2Heads&>(discretized) = heads_of(n, kept);
  discretized.dt = static_cast<const float*>(dt.data);
  discretized.A_log = {block.A_log.data, block.A_log.dtype};
  discretized.v = {v.data, inner};
  discretized.log_decay = static_cast<float*>(log_decay.data);
  static_cast<Mamba2Heads&>(skip) = heads_of(n, kept);
  skip.D = {block.D.data, block.D.dtype};
  skip.o = {o.data, inner};
  if (call.states) {
    convolution_step = {.x = as_token(before),
                        .weight = block.conv1d_weight,
                        .bias = block.conv1d_bias,
                        .silu = true,
                        .state = call.states->conv,
                        .out = as_token(xBC)};
    step = {.q = as_token(C),
            .k = as_token(B),
            .v = as_token(v),
            .log_decay = as_token(log_decay),
            .scale = 1.0,
            .state = call.states->state,
            .o = as_token(o)};
  } else {
    convolution = {.x = before,
                   .weight = block.conv1d_weight,
                   .bias = block.conv1d_bias,
                   .silu = true,
                   .cu_seqlens = call.cu_seqlens,
                   .out = xBC};
    gla = {.q = C,
           .k = B,
           .v = v,
           .log_decay = log_decay,
           .scale = 1.0,
           .cu_seqlens = call.cu_seqlens,
           .o = o};
    if (call.initial_states) {
      convolution.initial_state = call.initial_states->conv;
      gla.initial_state = call.initial_states->state;
    }
    if (call.final_states) {
      convolution.final_state = call.final_states->conv;
      gla.final_state = call.final_states->state;
    }
  }
  output = {.o = as_rows(o),
            .gate = z,
            .gate_activation = OutputGate::kSilu,
            .group_norm_weight = block.norm,
            .group_width = inner / n.G,
            .group_eps = block.eps,
            .norm_behind_gate = true,
            .weight = block.out_proj,
            .residual = tokens,
            .out = as_rows(call.out),
            .gated = gated,
            .group_rstd = group_rstd};
}

/// What the ops need in turn. This checks each of them.
std::size_t Forward::op_bytes(const DeviceProperties& device, bool batch_invariant) const {
  const auto of = [&](const Signature& signature, const void* args) {
    return workspace_bytes(signature, args, device, batch_invariant);
  };
  return std::max({projection_forward_workspace_bytes(projection, device, batch_invariant),
                   convolution_step ? of(causal_conv1d_step_signature(), &*convolution_step)
                                    : causal_conv1d_forward_workspace_bytes(convolution, device,
                                                                            batch_invariant),
                   step ? of(gla_step_signature(), &*step)
                        : gla_forward_workspace_bytes(gla, device, batch_invariant),
                   gated_output_forward_workspace_bytes(output, device, batch_invariant)});
}

void Forward::run(const Context& context) const {
  run_pass(norm, context, cpu::rms_norm_forward, TANDEM_CUDA_ENTRY(rms_norm_forward));
  projection_forward(projection, context);
  if (convolution_step) {
    causal_conv1d_step(*convolution_step, context);
  } else {
    causal_conv1d_forward(convolution, context);
  }
  run_pass(discretized, context, cpu::discretize, TANDEM_CUDA_ENTRY(discretize));
  if (step) {
    gla_step(*step, context);
  } else {
    gla_forward(gla, context);
  }
  run_pass(skip, context, cpu::add_skip, TANDEM_CUDA_ENTRY(add_skip));
  gated_output_forward(output, context);
}

ForwardCall call_of(const Mamba2BlockForwardArgs& args) {
  return {.name = "mamba2_block_forward",
          .block = args.block,
          .x = args.x,
          .out = args.out,
          .cu_seqlens = args.cu_seqlens,
          .initial_states = args.initial_states,
          .final_states = args.final_states,
          .saved = args.saved};
}

ForwardCall call_of(const Mamba2BlockStepArgs& args) {
  constexpr const char* kName = "mamba2_block_step";
  return {.name = kName,
          .block = args.block,
          .x = checked_token({kName, "x", args.x}),
          .out = checked_token({kName, "out", args.out}),
          .states = args.states};
}

}  // namespace
}  // namespace mamba2

void mamba2_block_forward(const Mamba2BlockForwardArgs& args, const Context& context) {
  run_block<mamba2::Forward>(mamba2::call_of(args), context);
}

std::size_t mamba2_block_forward_workspace_bytes(const Mamba2BlockForwardArgs& args,
                                                 const DeviceProperties& device,
                                                 bool batch_invariant) {
  return block_bytes<mamba2::Forward>(mamba2::call_of(args), device, batch_invariant);
}

std::size_t mamba2_block_saved_bytes(const Mamba2BlockForwardArgs& args) {
  return mamba2::saved_bytes(mamba2::sizes_of("mamba2_block_forward", args.block, args.x), args.x);
}

void mamba2_block_step(const Mamba2BlockStepArgs& args, const Context& context) {
  run_block<mamba2::Forward>(mamba2::call_of(args), context);
}

std::size_t mamba2_block_step_workspace_bytes(const Mamba2BlockStepArgs& args,
                                              const DeviceProperties& device,
                                              bool batch_invariant) {
  return block_bytes<mamba2::Forward>(mamba2::call_of(args), device, batch_invariant);
}

}  // namespace tandem
