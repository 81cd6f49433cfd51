// mamba2_block, backward: what its ops are called with, and in which order. Host only.
#include <algorithm>

#include "blocks/buffers.h"
#include "blocks/check.h"
#include "blocks/mamba2_parts.h"
#include "blocks/norm_in_front.h"
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

struct BackwardCall {
  const char* name;
  const Mamba2BlockBackwardArgs& args;
  TensorView x;
};

/// The backward's ops in their order, as in Forward.
struct Backward {
  RmsNormForwardProblem norm_again;
  GatedOutputBackwardArgs output;
  GlaBackwardArgs gla;
  Mamba2BackwardProblem passes;
  CausalConv1dBackwardArgs convolution;
  ProjectionBackwardArgs projection;
  RmsNormBackwardProblem norm;
  std::size_t bytes = 0;

  Backward(const BackwardCall& call, char* data);
  std::size_t op_bytes(const DeviceProperties& device, bool batch_invariant) const;
  void run(const Context& context) const;
};

/// Checks a backward's tensors that no op sees, or not together; returns what the forward saved.
TensorView check_backward(const BackwardCall& call, const Sizes& n) {
  const Mamba2BlockBackwardArgs& args = call.args;
  const Mamba2BlockGradients& gradients = args.gradients;
  const auto is = [&](const char* name, const TensorView& view) {
    return Argument{call.name, name, view};
  };
  const TensorView saved =
      checked_saved(call.name, args.saved, saved_bytes(n, args.x), args.x.device);
  check_token_gradients(call.name, args.x, args.d_out, args.dx);
  const auto vector = [&](const char* name, const char* axes, std::int64_t size,
                          const std::optional<TensorView>& view) {
    if (view) check_vector(is(name, *view), axes, size, args.x);
  };
  vector("gradients.input_norm", "[d]", n.d, gradients.input_norm);
  vector("gradients.A_log", "[H]", n.H, gradients.A_log);
  vector("gradients.D", "[H]", n.H, gradients.D);
  if (gradients.in_proj) {
    check_shape(is("gradients.in_proj", *gradients.in_proj), "in_proj's", args.block.in_proj.shape);
  }
  Arguments inputs(call.name), outputs(call.name);
  inputs.add("x", args.x);
  inputs.add(args.block);
  inputs.add("cu_seqlens", args.cu_seqlens);
  inputs.add("initial_states.conv", "initial_states.state", args.initial_states);
  inputs.add("saved", saved);
  inputs.add("d_out", args.d_out);
  inputs.add("d_final_states.conv", "d_final_states.state", args.d_final_states);
  outputs.add("dx", args.dx);
  outputs.add("d_initial_states.conv", "d_initial_states.state", args.d_initial_states);
  for (const Parameter& one : kParameters) outputs.add(one.gradient_name, gradients.*one.gradient);
  outputs.add("gradients.conv1d_bias", gradients.conv1d_bias);
  check_apart(outputs.all(), inputs.all());
  return saved;
}

Backward::Backward(const BackwardCall& call, char* data) {
  const Mamba2BlockBackwardArgs& args = call.args;
  const Mamba2Block& block = args.block;
  const Mamba2BlockGradients& gradients = args.gradients;
  const Sizes n = sizes_of(call.name, block, args.x);
  const TensorView saved = check_backward(call, n);
  const DType dtype = args.x.dtype;
  const Device device = args.x.device;
  const std::int64_t inner = n.inner(), channels = n.channels();
  Buffers in_saved(static_cast<char*>(saved.data), device);
  const Kept kept(in_saved, n, dtype, true);
  Buffers buffers(data, device);
  const auto like = [&](const TensorView& view) { return buffers.take(view.dtype, view.shape); };
  const TensorView normed = buffers.take(dtype, {n.rows(), n.d}), d_normed = like(normed);
  const TensorView d_o = like(kept.o), dz = like(kept.z), dv = like(kept.v);
  const TensorView d_xBC = like(kept.xBC), d_before = like(kept.before), d_dt = like(kept.dt);
  const TensorView d_log_decay = like(kept.log_decay);
  bytes = buffers.bytes();

  const TensorView d_out = as_rows(args.d_out);
  const NormInFront in_front = {.x = as_rows(args.x),
                                .weight = block.input_norm,
                                .rstd = *kept.rstd,
                                .n = normed,
                                .dn = d_normed,
                                .d_residual = d_out,
                                .dx = args.dx,
                                .d_weight = gradients.input_norm};
  norm_again = in_front.again();
  norm = in_front.gradient();
  output = {.o = as_rows(kept.o),
            .gate = kept.z,
            .gate_activation = OutputGate::kSilu,
            .group_norm_weight = block.norm,
            .group_width = inner / n.G,
            .norm_behind_gate = true,
            .group_rstd = kept.group_rstd,
            .gated = kept.gated,
            .weight = block.out_proj,
            .d_out = d_out,
            .d_o = as_rows(d_o),
            .d_gate = dz,
            .d_weight = gradients.out_proj,
            .d_group_norm_weight = gradients.norm};
  const auto groups_of = [&](const TensorView& view, std::int64_t which) {
    return heads_of(view, inner + which * n.G * n.N, n.G, n.N);
  };
  gla = {.q = groups_of(kept.xBC, 1),
         .k = groups_of(kept.xBC, 0),
         .v = kept.v,
         .log_decay = kept.log_decay,
         .scale = 1.0,
         .cu_seqlens = args.cu_seqlens,
         .d_o = d_o,
         .dq = groups_of(d_xBC, 1),
         .dk = groups_of(d_xBC, 0),
         .dv = dv,
         .d_log_decay = d_log_decay};
  static_cast<Mamba2Heads&>(passes) = heads_of(n, kept);
  passes.dt = static_cast<const float*>(kept.dt.data);
  passes.log_decay = static_cast<const float*>(kept.log_decay.data);
  passes.A_log = {block.A_log.data, block.A_log.dtype};
  passes.D = {block.D.data, block.D.dtype};
  passes.d_o = {d_o.data, inner};
  passes.dv = {dv.data, inner};
  passes.d_log_decay = static_cast<const float*>(d_log_decay.data);
  passes.dx = {d_xBC.data, channels};
  passes.d_dt = static_cast<float*>(d_dt.data);
  if (gradients.A_log) passes.d_A_log = {gradients.A_log->data, gradients.A_log->dtype};
  if (gradients.D) passes.d_D = {gradients.D->data, gradients.D->dtype};
  convolution = {.x = kept.before,
                 .weight = block.conv1d_weight,
                 .bias = block.conv1d_bias,
                 .silu = true,
                 .cu_seqlens = args.cu_seqlens,
                 .d_out = d_xBC,
                 .dx = d_before,
                 .d_weight = gradients.conv1d_weight,
                 .d_bias = gradients.conv1d_bias};
  if (args.initial_states) {
    gla.initial_state = args.initial_states->state;
    convolution.initial_state = args.initial_states->conv;
  }
  if (args.d_final_states) {
    gla.d_final_state = args.d_final_states->state;
    convolution.d_final_state = args.d_final_states->conv;
  }
  if (args.d_initial_states) {
    gla.d_initial_state = args.d_initial_states->state;
    convolution.d_initial_state = args.d_initial_states->conv;
  }
  const auto segment = [&](std::int64_t first, const TensorView& d_out) {
    const std::int64_t columns = d_out.shape[1];
    ProjectionSegmentGradient made = {.weight = rows_of(block.in_proj, first, columns),
                                      .d_out = d_out};
    if (gradients.in_proj) made.d_weight = rows_of(*gradients.in_proj, first, columns);
    return made;
  };
  projection = {.x = normed,
                .segments = {segment(0, dz), segment(inner, as_rows(d_before)),
                             segment(inner + channels, d_dt)},
                .dx = d_normed};
  ProjectionSegmentGradient& steps = projection.segments.back();
  steps.bias = block.dt_bias;
  steps.slope = kept.dt_slope;
  steps.d_bias = gradients.dt_bias;
}

std::size_t Backward::op_bytes(const DeviceProperties& device, bool batch_invariant) const {
  return std::max({gated_output_backward_workspace_bytes(output, device, batch_invariant),
                   gla_backward_workspace_bytes(gla, device, batch_invariant),
                   pass_bytes(passes, TANDEM_CUDA_ENTRY(mamba2_backward_workspace_bytes)),
                   causal_conv1d_backward_workspace_bytes(convolution, device, batch_invariant),
                   projection_backward_workspace_bytes(projection, device, batch_invariant),
                   pass_bytes(norm, TANDEM_CUDA_ENTRY(rms_norm_backward_workspace_bytes))});
}

void Backward::run(const Context& context) const {
  gated_output_backward(output, context);
  gla_backward(gla, context);
  run_pass(passes, context, cpu::mamba2_backward, TANDEM_CUDA_ENTRY(mamba2_backward));
  causal_conv1d_backward(convolution, context);
  run_pass(norm_again, context, cpu::rms_norm_forward, TANDEM_CUDA_ENTRY(rms_norm_forward));
  projection_backward(projection, context);
  run_pass(norm, context, cpu::rms_norm_backward, TANDEM_CUDA_ENTRY(rms_norm_backward));
}

BackwardCall call_of(const Mamba2BlockBackwardArgs& args) {
  return {"mamba2_block_backward", args, args.x};
}

}  // namespace
}  // namespace mamba2

void mamba2_block_backward(const Mamba2BlockBackwardArgs& args, const Context& context) {
  run_block<mamba2::Backward>(mamba2::call_of(args), context);
}

std::size_t mamba2_block_backward_workspace_bytes(const Mamba2BlockBackwardArgs& args,
                                                  const DeviceProperties& device,
                                                  bool batch_invariant) {
  return block_bytes<mamba2::Backward>(mamba2::call_of(args), device, batch_invariant);
}

}  // namespace tandem
