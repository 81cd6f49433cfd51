// mamba2_block: what its ops are called with, and in which order. Host only.
#include "tandem/blocks/mamba2_block.h"

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "blocks/buffers.h"
#include "blocks/check.h"
#include "blocks/run.h"
#include "ops/causal_conv1d.h"
#include "ops/gla.h"
#include "ops/mamba2.h"
#include "ops/rms_norm.h"
#include "tandem/ops/gated_output.h"
#include "tandem/ops/projection.h"

namespace tandem {
namespace {

struct Parameter {
  const char* name;
  TensorView Mamba2Block::*weight;
  const char* gradient_name;
  std::optional<TensorView> Mamba2BlockGradients::*gradient;
};
#define TANDEM_PARAMETER(name) \
  { #name, &Mamba2Block::name, "gradients." #name, &Mamba2BlockGradients::name }
/// All but conv1d_bias, which may be absent.
constexpr Parameter kParameters[] = {TANDEM_PARAMETER(input_norm),    TANDEM_PARAMETER(in_proj),
                                     TANDEM_PARAMETER(conv1d_weight), TANDEM_PARAMETER(dt_bias),
                                     TANDEM_PARAMETER(A_log),         TANDEM_PARAMETER(D),
                                     TANDEM_PARAMETER(norm),          TANDEM_PARAMETER(out_proj)};
#undef TANDEM_PARAMETER

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

struct Sizes {
  std::int64_t B, T, d, H, P, G, N;

  std::int64_t rows() const { return B * T; }
  std::int64_t inner() const { return H * P; }
  std::int64_t channels() const { return H * P + 2 * G * N; }
};

/// Checks what must hold before the ops can be called with parts of these tensors; they check the
/// rest.
Sizes sizes_of(const char* call, const Mamba2Block& block, const TensorView& x) {
  const auto is = [&](const char* name, const TensorView& view) {
    return Argument{call, name, view};
  };
  const auto must_divide = [&](const std::string& name, std::int64_t number, const char* what,
                               std::int64_t whole) {
    if (number >= 1 && whole % number == 0) return;
    refuse(call, name + " must be positive and divide " + what + " " + std::to_string(whole) +
                     ", got " + std::to_string(number));
  };
  check_tokens(is("x", x), "[B,T,d]", 3);
  check_rank(is("norm", block.norm), "[H*P]", 1);
  check_rank(is("in_proj", block.in_proj), "[H*P+E+H,d]", 2);
  check_rank(is("conv1d_weight", block.conv1d_weight), "[E,W]", 2);
  must_divide("heads", block.heads, "norm's", block.norm.shape[0]);
  must_divide("groups", block.groups, "heads =", block.heads);
  Sizes n = {.B = x.shape[0],
             .T = x.shape[1],
             .d = x.shape[2],
             .H = block.heads,
             .P = block.norm.shape[0] / block.heads,
             .G = block.groups,
             .N = 0};
  const std::int64_t states = block.conv1d_weight.shape[0] - n.inner();
  if (states < 2 * n.G || states % (2 * n.G) != 0) {
    refuse(call, "conv1d_weight must have rows for H*P = " + std::to_string(n.inner()) +
                     " channels and two of each of " + std::to_string(n.G) +
                     " groups' states, got " + std::to_string(block.conv1d_weight.shape[0]));
  }
  n.N = states / (2 * n.G);
  check_shape(is("in_proj", block.in_proj), "[H*P+E+H,d]", {n.inner() + n.channels() + n.H, n.d});
  check_data(is("in_proj", block.in_proj));
  check_vector(is("input_norm", block.input_norm), "[d]", n.d, x);
  check_vector(is("A_log", block.A_log), "[H]", n.H, x);
  check_vector(is("D", block.D), "[H]", n.H, x);
  check_eps(call, block.eps);
  return n;
}

/// What lies between the ops and a backward reads again.
struct Kept {
  TensorView z, before, xBC, dt, v, log_decay, o;  // before: xBC before its convolution
  // Of a forward that is differentiated, in the ops' words.
  std::optional<TensorView> rstd, dt_slope, gated, group_rstd;

  Kept(Buffers& buffers, const Sizes& n, DType dtype, bool differentiated) {
    const DType real = real_dtype(dtype);
    z = buffers.take(dtype, {n.rows(), n.inner()});
    before = buffers.take(dtype, {n.B, n.T, n.channels()});
    xBC = buffers.take(dtype, before.shape);
    dt = buffers.take(real, {n.rows(), n.H});
    v = buffers.take(dtype, {n.B, n.T, n.H, n.P});
    log_decay = buffers.take(real, {n.B, n.T, n.H});
    o = buffers.take(dtype, v.shape);
    if (!differentiated) return;
    rstd = buffers.take(real, {n.rows()});
    dt_slope = buffers.take(real, dt.shape);
    gated = buffers.take(dtype, z.shape);
    group_rstd = buffers.take(real, {n.rows(), n.G});
  }
};

std::size_t saved_bytes(const Sizes& n, const TensorView& x) {
  Buffers buffers(nowhere(), x.device);
  const Kept kept(buffers, n, x.dtype, true);
  return buffers.bytes();
}

/// Tensors by their names, as a call's checks take them.
class Arguments {
 public:
  explicit Arguments(const char* call) : call_(call) {}

  void add(const char* name, const TensorView& view) { all_.push_back({call_, name, view}); }
  void add(const char* name, const std::optional<TensorView>& view) {
    if (view) add(name, *view);
  }
  void add(const char* conv, const char* state, const std::optional<Mamba2States>& states) {
    if (states) add(conv, states->conv), add(state, states->state);
  }
  void add(const Mamba2Block& block) {
    for (const Parameter& one : kParameters) add(one.name, block.*one.weight);
    add("conv1d_bias", block.conv1d_bias);
  }
  const std::vector<Argument>& all() const { return all_; }

 private:
  const char* call_;
  std::vector<Argument> all_;
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

/// Rows [first, first + count) of a matrix.
TensorView rows_of(const TensorView& matrix, std::int64_t first, std::int64_t count) {
  TensorView rows = matrix;
  rows.data = static_cast<char*>(matrix.data) + first * matrix.strides[0] * size_of(matrix.dtype);
  rows.shape[0] = count;
  return rows;
}

/// Columns from `first` on of [B,T,columns], as [B,T,heads,width].
TensorView heads_of(const TensorView& tokens, std::int64_t first, std::int64_t heads,
                    std::int64_t width) {
  const std::int64_t T = tokens.shape[1], columns = tokens.shape[2];
  return {static_cast<char*>(tokens.data) + first * size_of(tokens.dtype),
          tokens.dtype,
          {tokens.shape[0], T, heads, width},
          {T * columns, columns, width, 1},
          tokens.device};
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

Mamba2Heads heads_of(const Sizes& n, const Kept& kept) {
  Mamba2Heads heads;
  heads.dtype = kept.xBC.dtype;
  heads.device = kept.xBC.device;
  heads.M = n.rows();
  heads.H = static_cast<int>(n.H);
  heads.P = static_cast<int>(n.P);
  heads.x = {kept.xBC.data, n.channels()};
  return heads;
}

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
  check_tokens(is("d_out", args.d_out), "[B,T,d]", 3);
  check_shape(is("d_out", args.d_out), "x's", args.x.shape);
  if (args.dx) {
    const Argument dx = is("dx", *args.dx);
    check_tokens(dx, "[B,T,d]", 3);
    check_shape(dx, "x's", args.x.shape);
    check_dtype(dx, args.x.dtype);
    check_device(dx, args.x.device);
  }
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

  const TensorView x = as_rows(args.x), d_out = as_rows(args.d_out);
  const RmsNorm given = {block.input_norm.data, block.input_norm.dtype, 0,
                         static_cast<const float*>(kept.rstd->data)};
  norm_again = {.dtype = dtype,
                .device = device,
                .M = n.rows(),
                .d = static_cast<int>(n.d),
                .x = {x.data, n.d},
                .norm = given,
                .n = {normed.data, n.d}};
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
  norm = {.dtype = dtype,
          .device = device,
          .M = n.rows(),
          .d = static_cast<int>(n.d),
          .x = {x.data, n.d},
          .norm = given,
          .dn = {d_normed.data, n.d},
          .addend = {d_out.data, n.d}};
  if (args.dx) norm.dx = {args.dx->data, n.d};
  if (gradients.input_norm) {
    norm.d_weight = {gradients.input_norm->data, gradients.input_norm->dtype};
  }
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

BackwardCall call_of(const Mamba2BlockBackwardArgs& args) {
  return {"mamba2_block_backward", args, args.x};
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

void mamba2_block_forward(const Mamba2BlockForwardArgs& args, const Context& context) {
  run_block<Forward>(call_of(args), context);
}

std::size_t mamba2_block_forward_workspace_bytes(const Mamba2BlockForwardArgs& args,
                                                 const DeviceProperties& device,
                                                 bool batch_invariant) {
  return block_bytes<Forward>(call_of(args), device, batch_invariant);
}

std::size_t mamba2_block_saved_bytes(const Mamba2BlockForwardArgs& args) {
  return saved_bytes(sizes_of("mamba2_block_forward", args.block, args.x), args.x);
}

void mamba2_block_backward(const Mamba2BlockBackwardArgs& args, const Context& context) {
  run_block<Backward>(call_of(args), context);
}

std::size_t mamba2_block_backward_workspace_bytes(const Mamba2BlockBackwardArgs& args,
                                                  const DeviceProperties& device,
                                                  bool batch_invariant) {
  return block_bytes<Backward>(call_of(args), device, batch_invariant);
}

void mamba2_block_step(const Mamba2BlockStepArgs& args, const Context& context) {
  run_block<Forward>(call_of(args), context);
}

std::size_t mamba2_block_step_workspace_bytes(const Mamba2BlockStepArgs& args,
                                              const DeviceProperties& device,
                                              bool batch_invariant) {
  return block_bytes<Forward>(call_of(args), device, batch_invariant);
}

}  // namespace tandem
