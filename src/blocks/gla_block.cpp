// gla_block: what its ops are called with, and in which order. Host only.
#include "tandem/blocks/gla_block.h"

#include <algorithm>
#include <string>
#include <vector>

#include "blocks/buffers.h"
#include "blocks/check.h"
#include "blocks/norm_in_front.h"
#include "blocks/run.h"
#include "ops/gla.h"
#include "ops/rms_norm.h"
#include "tandem/ops/gated_output.h"
#include "tandem/ops/gla.h"

namespace tandem {
namespace {

struct Parameter {
  const char* name;
  TensorView GlaBlock::*weight;
  const char* gradient_name;
  std::optional<TensorView> GlaBlockGradients::*gradient;
};
#define TANDEM_PARAMETER(name) \
  { #name, &GlaBlock::name, "gradients." #name, &GlaBlockGradients::name }
constexpr Parameter kParameters[] = {
    TANDEM_PARAMETER(attn_norm), TANDEM_PARAMETER(q_proj), TANDEM_PARAMETER(k_proj),
    TANDEM_PARAMETER(v_proj),    TANDEM_PARAMETER(g_proj), TANDEM_PARAMETER(gk_proj),
    TANDEM_PARAMETER(gk_bias),   TANDEM_PARAMETER(o_proj), TANDEM_PARAMETER(g_norm_swish_gate)};
#undef TANDEM_PARAMETER

struct Sizes {
  std::int64_t B, T, d, H, K, V;

  std::int64_t rows() const { return B * T; }
};

/// Checks what must hold before the ops can be called with parts of these tensors; they check the
/// rest. x is [B,T,d].
Sizes sizes_of(const char* call, const GlaBlock& block, const TensorView& x) {
  check_tokens({call, "x", x}, "[B,T,d]", 3);
  const auto head_width = [&](const char* name, const TensorView& weight, const char* axes) {
    check_rank({call, name, weight}, axes, 2);
    if (weight.shape[0] % block.heads != 0) {
      refuse(call, "heads must divide " + std::string(name) + "'s " +
                       std::to_string(weight.shape[0]) + " rows, got " +
                       std::to_string(block.heads));
    }
    return weight.shape[0] / block.heads;
  };
  if (block.heads < 1) refuse(call, "heads must be positive, got " + std::to_string(block.heads));
  const Sizes n = {.B = x.shape[0],
                   .T = x.shape[1],
                   .d = x.shape[2],
                   .H = block.heads,
                   .K = head_width("q_proj", block.q_proj, "[H*K,d]"),
                   .V = head_width("v_proj", block.v_proj, "[H*V,d]")};
  check_vector({call, "attn_norm", block.attn_norm}, "[d]", n.d, x);
  check_eps(call, block.eps);
  const Activation f = block.feature_map;
  if (f != Activation::kNone && f != Activation::kSilu && f != Activation::kSigmoid) {
    refuse(call, "feature_map must be 0 (none), 1 (silu) or 2 (sigmoid), got " +
                     std::to_string(static_cast<int>(f)));
  }
  return n;
}

/// What lies between the ops and a backward reads again.
struct Kept {
  TensorView q, k, v, gate, log_decay, o;
  // Of a forward that is differentiated, in the ops' words.
  std::optional<TensorView> rstd, q_slope, k_slope, decay_slope, gated, group_rstd;

  Kept(Buffers& buffers, const Sizes& n, const GlaBlock& block, DType dtype, bool differentiated) {
    const DType real = real_dtype(dtype);
    q = buffers.take(dtype, {n.B, n.T, n.H, n.K});
    k = buffers.take(dtype, q.shape);
    v = buffers.take(dtype, {n.B, n.T, n.H, n.V});
    gate = buffers.take(dtype, {n.rows(), n.H * n.V});
    log_decay = buffers.take(real, {n.B, n.T, n.H});
    o = buffers.take(dtype, v.shape);
    if (!differentiated) return;
    rstd = buffers.take(real, {n.rows()});
    if (block.feature_map != Activation::kNone) {
      q_slope = buffers.take(dtype, {n.rows(), n.H * n.K});
      k_slope = buffers.take(dtype, q_slope->shape);
    }
    decay_slope = buffers.take(real, {n.rows(), n.H});
    gated = buffers.take(dtype, gate.shape);
    group_rstd = buffers.take(real, {n.rows(), n.H});
  }
};

std::size_t saved_bytes(const Sizes& n, const GlaBlock& block, const TensorView& x) {
  Buffers buffers(nowhere(), x.device);
  const Kept kept(buffers, n, block, x.dtype, true);
  return buffers.bytes();
}

/// A forward or a step. x and out are [B,T,d], of a step with T = 1.
struct ForwardCall {
  const char* name;
  const GlaBlock& block;
  TensorView x, out;
  std::optional<TensorView> cu_seqlens = {}, initial_state = {}, final_state = {};
  std::optional<TensorView> state = {};  // of a step
  std::optional<SavedMemory> saved = {};
};

/// Its ops in their order, on tensors of the caller and in a workspace at `data`.
struct Forward {
  RmsNormForwardProblem norm;
  ProjectionForwardArgs projection;
  GlaForwardArgs gla;
  std::optional<GlaStepArgs> step;  // in the place of gla
  GatedOutputForwardArgs output;
  std::size_t bytes = 0;  // of the tensors between them

  Forward(const ForwardCall& call, char* data);
  std::size_t op_bytes(const DeviceProperties& device, bool batch_invariant) const;
  void run(const Context& context) const;
};

/// Checks a forward's tensors that no op sees together; returns where it saves, if it does.
std::optional<TensorView> check_forward(const ForwardCall& call, const Sizes& n) {
  const auto is = [&](const char* name, const TensorView& view) {
    return Argument{call.name, name, view};
  };
  check_tokens(is("out", call.out), "[B,T,d]", 3);
  check_shape(is("out", call.out), "x's", call.x.shape);
  std::optional<TensorView> saved;
  std::vector<Argument> inputs = {is("x", call.x)}, outputs = {is("out", call.out)};
  for (const Parameter& one : kParameters) {
    inputs.push_back(is(one.name, call.block.*one.weight));
  }
  if (call.cu_seqlens) inputs.push_back(is("cu_seqlens", *call.cu_seqlens));
  if (call.final_state) outputs.push_back(is("final_state", *call.final_state));
  if (call.state) outputs.push_back(is("state", *call.state));
  if (call.saved) {
    saved =
        checked_saved(call.name, *call.saved, saved_bytes(n, call.block, call.x), call.x.device);
    outputs.push_back(is("saved", *saved));
  }
  check_apart(outputs, inputs);
  if (call.initial_state) {  // gla checks it beside final_state, which may be the same
    const Argument initial_state = is("initial_state", *call.initial_state);
    check_apart({is("out", call.out)}, {initial_state});
    if (saved) check_apart({is("saved", *saved)}, {initial_state});
  }
  return saved;
}

Forward::Forward(const ForwardCall& call, char* data) {
  const GlaBlock& block = call.block;
  const Sizes n = sizes_of(call.name, block, call.x);
  const std::optional<TensorView> saved = check_forward(call, n);
  const DType dtype = call.x.dtype;
  const Device device = call.x.device;
  Buffers buffers(data, device);
  const TensorView normed = buffers.take(dtype, {n.rows(), n.d});
  Buffers in_saved(saved ? static_cast<char*>(saved->data) : nullptr, device);
  const Kept kept(saved ? in_saved : buffers, n, block, dtype, saved.has_value());
  bytes = buffers.bytes();

  const TensorView x = as_rows(call.x);
  norm = {.dtype = dtype,
          .device = device,
          .M = n.rows(),
          .d = static_cast<int>(n.d),
          .x = {x.data, n.d},
          .norm = {block.attn_norm.data, block.attn_norm.dtype, block.eps},
          .n = {normed.data, n.d},
          .kept_rstd = kept.rstd ? static_cast<float*>(kept.rstd->data) : nullptr};
  projection.x = normed;
  const auto segment = [&](const TensorView& weight, Activation activation, const TensorView& out,
                           const std::optional<TensorView>& slope) -> ProjectionSegment& {
    return projection.segments.emplace_back(
        ProjectionSegment{.weight = weight, .activation = activation, .out = out, .slope = slope});
  };
  segment(block.q_proj, block.feature_map, as_rows(kept.q), kept.q_slope);
  segment(block.k_proj, block.feature_map, as_rows(kept.k), kept.k_slope);
  segment(block.v_proj, Activation::kNone, as_rows(kept.v), std::nullopt);
  segment(block.g_proj, Activation::kNone, kept.gate, std::nullopt);
  ProjectionSegment& decay =
      segment(block.gk_proj, Activation::kLogSigmoid, as_rows(kept.log_decay), kept.decay_slope);
  decay.bias = block.gk_bias;
  decay.divisor = block.gate_logit_normalizer;
  if (call.state) {
    step = {.q = as_token(kept.q),
            .k = as_token(kept.k),
            .v = as_token(kept.v),
            .log_decay = as_token(kept.log_decay),
            .state = *call.state,
            .o = as_token(kept.o)};
  } else {
    gla = {.q = kept.q,
           .k = kept.k,
           .v = kept.v,
           .log_decay = kept.log_decay,
           .initial_state = call.initial_state,
           .cu_seqlens = call.cu_seqlens,
           .o = kept.o,
           .final_state = call.final_state};
  }
  output = {.o = as_rows(kept.o),
            .gate = kept.gate,
            .gate_activation = OutputGate::kSilu,
            .group_norm_weight = block.g_norm_swish_gate,
            .group_width = n.V,
            .group_eps = block.head_eps,
            .weight = block.o_proj,
            .residual = x,
            .out = as_rows(call.out),
            .gated = kept.gated,
            .group_rstd = kept.group_rstd};
}

/// What the ops need in turn. This checks each of them.
std::size_t Forward::op_bytes(const DeviceProperties& device, bool batch_invariant) const {
  return std::max({projection_forward_workspace_bytes(projection, device, batch_invariant),
                   step ? workspace_bytes(gla_step_signature(), &*step, device, batch_invariant)
                        : gla_forward_workspace_bytes(gla, device, batch_invariant),
                   gated_output_forward_workspace_bytes(output, device, batch_invariant)});
}

void Forward::run(const Context& context) const {
  run_pass(norm, context, cpu::rms_norm_forward, TANDEM_CUDA_ENTRY(rms_norm_forward));
  projection_forward(projection, context);
  if (step) {
    gla_step(*step, context);
  } else {
    gla_forward(gla, context);
  }
  gated_output_forward(output, context);
}

struct BackwardCall {
  const char* name;
  const GlaBlockBackwardArgs& args;
  TensorView x;
};

/// The backward's ops in their order, as in Forward.
struct Backward {
  RmsNormForwardProblem norm_again;
  GatedOutputBackwardArgs output;
  GlaBackwardArgs gla;
  ProjectionBackwardArgs projection;
  RmsNormBackwardProblem norm;
  std::size_t bytes = 0;

  Backward(const BackwardCall& call, char* data);
  std::size_t op_bytes(const DeviceProperties& device, bool batch_invariant) const;
  void run(const Context& context) const;
};

/// Checks a backward's tensors that no op sees, or not together; returns what the forward saved.
TensorView check_backward(const BackwardCall& call, const Sizes& n) {
  const GlaBlockBackwardArgs& args = call.args;
  const auto is = [&](const char* name, const TensorView& view) {
    return Argument{call.name, name, view};
  };
  const TensorView saved =
      checked_saved(call.name, args.saved, saved_bytes(n, args.block, args.x), args.x.device);
  std::vector<Argument> inputs = {is("x", args.x), is("d_out", args.d_out), is("saved", saved)};
  std::vector<Argument> outputs;
  for (const Parameter& one : kParameters) {
    inputs.push_back(is(one.name, args.block.*one.weight));
    const std::optional<TensorView>& gradient = args.gradients.*one.gradient;
    if (gradient) outputs.push_back(is(one.gradient_name, *gradient));
  }
  const auto add = [&](std::vector<Argument>& to, const char* name,
                       const std::optional<TensorView>& view) {
    if (view) to.push_back(is(name, *view));
  };
  add(inputs, "cu_seqlens", args.cu_seqlens);
  add(inputs, "initial_state", args.initial_state);
  add(inputs, "d_final_state", args.d_final_state);
  add(outputs, "dx", args.dx);
  add(outputs, "d_initial_state", args.d_initial_state);
  check_token_gradients(call.name, args.x, args.d_out, args.dx);
  if (args.gradients.attn_norm) {
    check_vector(is("gradients.attn_norm", *args.gradients.attn_norm), "[d]", n.d, args.x);
  }
  check_apart(outputs, inputs);
  return saved;
}

Backward::Backward(const BackwardCall& call, char* data) {
  const GlaBlockBackwardArgs& args = call.args;
  const GlaBlock& block = args.block;
  const GlaBlockGradients& gradients = args.gradients;
  const Sizes n = sizes_of(call.name, block, args.x);
  const TensorView saved = check_backward(call, n);
  const DType dtype = args.x.dtype;
  const Device device = args.x.device;
  Buffers in_saved(static_cast<char*>(saved.data), device);
  const Kept kept(in_saved, n, block, dtype, true);
  Buffers buffers(data, device);
  const auto like = [&](const TensorView& view) { return buffers.take(view.dtype, view.shape); };
  const TensorView normed = buffers.take(dtype, {n.rows(), n.d}), d_normed = like(normed);
  const TensorView d_o = like(kept.o), d_gate = like(kept.gate), dq = like(kept.q);
  const TensorView dk = like(kept.k), dv = like(kept.v), d_log_decay = like(kept.log_decay);
  bytes = buffers.bytes();

  const TensorView d_out = as_rows(args.d_out);
  const NormInFront in_front = {.x = as_rows(args.x),
                                .weight = block.attn_norm,
                                .rstd = *kept.rstd,
                                .n = normed,
                                .dn = d_normed,
                                .d_residual = d_out,
                                .dx = args.dx,
                                .d_weight = gradients.attn_norm,
                                .accumulate = args.accumulate};
  norm_again = in_front.again();
  norm = in_front.gradient();
  output = {.o = as_rows(kept.o),
            .gate = kept.gate,
            .gate_activation = OutputGate::kSilu,
            .group_norm_weight = block.g_norm_swish_gate,
            .group_width = n.V,
            .group_rstd = kept.group_rstd,
            .gated = kept.gated,
            .weight = block.o_proj,
            .d_out = d_out,
            .d_o = as_rows(d_o),
            .d_gate = d_gate,
            .d_weight = gradients.o_proj,
            .d_group_norm_weight = gradients.g_norm_swish_gate,
            .accumulate = args.accumulate};
  gla = {.q = kept.q,
         .k = kept.k,
         .v = kept.v,
         .log_decay = kept.log_decay,
         .initial_state = args.initial_state,
         .cu_seqlens = args.cu_seqlens,
         .d_o = d_o,
         .d_final_state = args.d_final_state,
         .dq = dq,
         .dk = dk,
         .dv = dv,
         .d_log_decay = d_log_decay,
         .d_initial_state = args.d_initial_state};
  const auto segment = [](const TensorView& weight, const std::optional<TensorView>& slope,
                          const TensorView& d_out, const std::optional<TensorView>& d_weight) {
    return ProjectionSegmentGradient{
        .weight = weight, .slope = slope, .d_out = d_out, .d_weight = d_weight};
  };
  projection = {.x = normed,
                .segments = {segment(block.q_proj, kept.q_slope, as_rows(dq), gradients.q_proj),
                             segment(block.k_proj, kept.k_slope, as_rows(dk), gradients.k_proj),
                             segment(block.v_proj, std::nullopt, as_rows(dv), gradients.v_proj),
                             segment(block.g_proj, std::nullopt, d_gate, gradients.g_proj),
                             segment(block.gk_proj, kept.decay_slope, as_rows(d_log_decay),
                                     gradients.gk_proj)},
                .dx = d_normed,
                .accumulate = args.accumulate};
  projection.segments.back().bias = block.gk_bias;
  projection.segments.back().d_bias = gradients.gk_bias;
}

std::size_t Backward::op_bytes(const DeviceProperties& device, bool batch_invariant) const {
  return std::max({gated_output_backward_workspace_bytes(output, device, batch_invariant),
                   gla_backward_workspace_bytes(gla, device, batch_invariant),
                   projection_backward_workspace_bytes(projection, device, batch_invariant),
                   pass_bytes(norm, TANDEM_CUDA_ENTRY(rms_norm_backward_workspace_bytes))});
}

void Backward::run(const Context& context) const {
  gated_output_backward(output, context);
  gla_backward(gla, context);
  run_pass(norm_again, context, cpu::rms_norm_forward, TANDEM_CUDA_ENTRY(rms_norm_forward));
  projection_backward(projection, context);
  run_pass(norm, context, cpu::rms_norm_backward, TANDEM_CUDA_ENTRY(rms_norm_backward));
}

ForwardCall call_of(const GlaBlockForwardArgs& args) {
  return {.name = "gla_block_forward",
          .block = args.block,
          .x = args.x,
          .out = args.out,
          .cu_seqlens = args.cu_seqlens,
          .initial_state = args.initial_state,
          .final_state = args.final_state,
          .saved = args.saved};
}

BackwardCall call_of(const GlaBlockBackwardArgs& args) {
  return {"gla_block_backward", args, args.x};
}

ForwardCall call_of(const GlaBlockStepArgs& args) {
  constexpr const char* kName = "gla_block_step";
  return {.name = kName,
          .block = args.block,
          .x = checked_token({kName, "x", args.x}),
          .out = checked_token({kName, "out", args.out}),
          .state = args.state};
}

}  // namespace

void gla_block_forward(const GlaBlockForwardArgs& args, const Context& context) {
  run_block<Forward>(call_of(args), context);
}

std::size_t gla_block_forward_workspace_bytes(const GlaBlockForwardArgs& args,
                                              const DeviceProperties& device,
                                              bool batch_invariant) {
  return block_bytes<Forward>(call_of(args), device, batch_invariant);
}

std::size_t gla_block_saved_bytes(const GlaBlockForwardArgs& args) {
  return saved_bytes(sizes_of("gla_block_forward", args.block, args.x), args.block, args.x);
}

void gla_block_backward(const GlaBlockBackwardArgs& args, const Context& context) {
  run_block<Backward>(call_of(args), context);
}

std::size_t gla_block_backward_workspace_bytes(const GlaBlockBackwardArgs& args,
                                               const DeviceProperties& device,
                                               bool batch_invariant) {
  return block_bytes<Backward>(call_of(args), device, batch_invariant);
}

void gla_block_step(const GlaBlockStepArgs& args, const Context& context) {
  run_block<Forward>(call_of(args), context);
}

std::size_t gla_block_step_workspace_bytes(const GlaBlockStepArgs& args,
                                           const DeviceProperties& device, bool batch_invariant) {
  return block_bytes<Forward>(call_of(args), device, batch_invariant);
}

}  // namespace tandem
