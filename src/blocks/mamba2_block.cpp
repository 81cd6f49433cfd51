// mamba2_block: what its ops are called with, and in which order. Host only.
#include "tandem/blocks/mamba2_block.h"

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "blocks/buffers.h"
#include "blocks/check.h"
#include "blocks/norm.h"
#include "blocks/run.h"
#include "ops/call.h"
#include "ops/causal_conv1d.h"
#include "ops/gla.h"
#include "ops/mamba2.h"
#include "tandem/ops/gated_output.h"
#include "tandem/ops/projection.h"

namespace tandem {
namespace {

/// Either call of the block. Its x and out are [B,T,d], of a step with T = 1.
struct Call {
  const char* name;
  const Mamba2Block& block;
  TensorView x, out;
  std::optional<TensorView> cu_seqlens = {};
  std::optional<Mamba2States> initial_states = {}, final_states = {};
  std::optional<Mamba2States> states = {};  // of a step
};

struct Sizes {
  std::int64_t B, T, d, H, P, G, N;

  std::int64_t rows() const { return B * T; }
  std::int64_t inner() const { return H * P; }
  std::int64_t channels() const { return H * P + 2 * G * N; }
};

/// Checks what must hold before the ops can be called with parts of these tensors; they check the
/// rest.
Sizes sizes_of(const Call& call) {
  const Mamba2Block& block = call.block;
  const auto is = [&](const char* name, const TensorView& view) {
    return Argument{call.name, name, view};
  };
  const auto must_divide = [&](const std::string& name, std::int64_t number, const char* what,
                               std::int64_t whole) {
    if (number >= 1 && whole % number == 0) return;
    refuse(call.name, name + " must be positive and divide " + what + " " + std::to_string(whole) +
                          ", got " + std::to_string(number));
  };
  check_tokens(is("x", call.x), "[B,T,d]", 3);
  check_tokens(is("out", call.out), "[B,T,d]", 3);
  check_shape(is("out", call.out), "x's", call.x.shape);
  check_rank(is("norm", block.norm), "[H*P]", 1);
  check_rank(is("in_proj", block.in_proj), "[H*P+E+H,d]", 2);
  check_rank(is("conv1d_weight", block.conv1d_weight), "[E,W]", 2);
  must_divide("heads", block.heads, "norm's", block.norm.shape[0]);
  must_divide("groups", block.groups, "heads =", block.heads);
  Sizes n = {.B = call.x.shape[0],
             .T = call.x.shape[1],
             .d = call.x.shape[2],
             .H = block.heads,
             .P = block.norm.shape[0] / block.heads,
             .G = block.groups,
             .N = 0};
  const std::int64_t states = block.conv1d_weight.shape[0] - n.inner();
  if (states < 2 * n.G || states % (2 * n.G) != 0) {
    refuse(call.name, "conv1d_weight must have rows for H*P = " + std::to_string(n.inner()) +
                          " channels and two of each of " + std::to_string(n.G) +
                          " groups' states, got " + std::to_string(block.conv1d_weight.shape[0]));
  }
  n.N = states / (2 * n.G);
  check_shape(is("in_proj", block.in_proj), "[H*P+E+H,d]", {n.inner() + n.channels() + n.H, n.d});
  check_data(is("in_proj", block.in_proj));
  check_vector(is("input_norm", block.input_norm), "[d]", n.d, call.x);
  check_vector(is("A_log", block.A_log), "[H]", n.H, call.x);
  check_vector(is("D", block.D), "[H]", n.H, call.x);
  check_eps(call.name, block.eps);
  return n;
}

/// Checks that the tensors, which no op sees together, lie apart.
void check_memory(const Call& call) {
  std::vector<Argument> inputs, outputs;
  const auto add = [&](std::vector<Argument>& to, const char* name, const TensorView& view) {
    to.push_back({call.name, name, view});
  };
  const Mamba2Block& block = call.block;
  add(outputs, "out", call.out);
  add(inputs, "x", call.x);
  add(inputs, "input_norm", block.input_norm);
  add(inputs, "in_proj", block.in_proj);
  add(inputs, "conv1d_weight", block.conv1d_weight);
  if (block.conv1d_bias) add(inputs, "conv1d_bias", *block.conv1d_bias);
  add(inputs, "dt_bias", block.dt_bias);
  add(inputs, "A_log", block.A_log);
  add(inputs, "D", block.D);
  add(inputs, "norm", block.norm);
  add(inputs, "out_proj", block.out_proj);
  if (call.cu_seqlens) add(inputs, "cu_seqlens", *call.cu_seqlens);
  if (call.states) {
    add(outputs, "states.conv", call.states->conv);
    add(outputs, "states.state", call.states->state);
  }
  if (call.final_states) {
    add(outputs, "final_states.conv", call.final_states->conv);
    add(outputs, "final_states.state", call.final_states->state);
  }
  check_apart(outputs, inputs);
  if (!call.initial_states) return;
  // gla checks the two states beside each other, which may be the same.
  const Argument conv = {call.name, "initial_states.conv", call.initial_states->conv};
  const Argument state = {call.name, "initial_states.state", call.initial_states->state};
  check_apart({outputs.front()}, {conv, state});
  if (!call.final_states) return;
  check_apart({outputs[1]}, {conv, state});
  check_apart({outputs[2]}, {conv});
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

/// The block's ops in their order, on tensors of the caller and in a workspace at `data`.
struct Sequence {
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

  Sequence(const Call& call, char* data);
  std::size_t op_bytes(const DeviceProperties& device, bool batch_invariant) const;
  void run(const Context& context) const;
};

Sequence::Sequence(const Call& call, char* data) {
  const Mamba2Block& block = call.block;
  const Sizes n = sizes_of(call);
  check_memory(call);
  const DType dtype = call.x.dtype, real = real_dtype(dtype);
  const Device device = call.x.device;
  const std::int64_t inner = n.inner(), channels = n.channels();
  Buffers buffers(data, device);
  const TensorView normed = buffers.take(dtype, {n.rows(), n.d});
  const TensorView z = buffers.take(dtype, {n.rows(), inner});
  const TensorView before = buffers.take(dtype, {n.B, n.T, channels});
  const TensorView xBC = buffers.take(dtype, before.shape);
  const TensorView dt = buffers.take(real, {n.rows(), n.H});
  const TensorView log_decay = buffers.take(real, {n.B, n.T, n.H});
  const TensorView v = buffers.take(dtype, {n.B, n.T, n.H, n.P});
  const TensorView o = buffers.take(dtype, v.shape);
  bytes = buffers.bytes();

  const TensorView tokens = as_rows(call.x);
  norm = {.dtype = dtype,
          .device = device,
          .M = n.rows(),
          .d = static_cast<int>(n.d),
          .x = {tokens.data, n.d},
          .norm = {block.input_norm.data, block.input_norm.dtype, block.eps},
          .n = {normed.data, n.d}};
  ProjectionSegment steps = {.weight = rows_of(block.in_proj, inner + channels, n.H),
                             .bias = block.dt_bias,
                             .activation = Activation::kSoftplus,
                             .out = dt};
  if (block.dt_min != 0) steps.min = block.dt_min;
  if (!std::isinf(block.dt_max)) steps.max = block.dt_max;
  projection = {
      .x = normed,
      .segments = {{.weight = rows_of(block.in_proj, 0, inner), .out = z},
                   {.weight = rows_of(block.in_proj, inner, channels), .out = as_rows(before)},
                   steps}};

  const TensorView x = heads_of(xBC, 0, n.H, n.P);
  const TensorView B = heads_of(xBC, inner, n.G, n.N);
  const TensorView C = heads_of(xBC, inner + n.G * n.N, n.G, n.N);
  Mamba2Heads heads;
  heads.dtype = dtype;
  heads.device = device;
  heads.M = n.rows();
  heads.H = static_cast<int>(n.H);
  heads.P = static_cast<int>(n.P);
  heads.x = {x.data, channels};
  static_cast<Mamba2Heads&>(discretized) = heads;
  discretized.dt = static_cast<const float*>(dt.data);
  discretized.A_log = {block.A_log.data, block.A_log.dtype};
  discretized.v = {v.data, inner};
  discretized.log_decay = static_cast<float*>(log_decay.data);
  static_cast<Mamba2Heads&>(skip) = heads;
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
            .out = as_rows(call.out)};
}

/// What the ops need in turn. This checks each of them.
std::size_t Sequence::op_bytes(const DeviceProperties& device, bool batch_invariant) const {
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

void discretize(const DiscretizeProblem& problem, const Context& context) {
  if (problem.device.type == DeviceType::kCpu) return cpu::discretize(problem);
#ifdef TANDEM_CUDA
  cuda::discretize(problem, context.stream);
#endif
}

void add_skip(const SkipProblem& problem, const Context& context) {
  if (problem.device.type == DeviceType::kCpu) return cpu::add_skip(problem);
#ifdef TANDEM_CUDA
  cuda::add_skip(problem, context.stream);
#endif
}

void Sequence::run(const Context& context) const {
  rms_norm_forward(norm, context);
  projection_forward(projection, context);
  if (convolution_step) {
    causal_conv1d_step(*convolution_step, context);
  } else {
    causal_conv1d_forward(convolution, context);
  }
  discretize(discretized, context);
  if (step) {
    gla_step(*step, context);
  } else {
    gla_forward(gla, context);
  }
  add_skip(skip, context);
  gated_output_forward(output, context);
}

Call call_of(const Mamba2BlockForwardArgs& args) {
  return {.name = "mamba2_block_forward",
          .block = args.block,
          .x = args.x,
          .out = args.out,
          .cu_seqlens = args.cu_seqlens,
          .initial_states = args.initial_states,
          .final_states = args.final_states};
}

Call call_of(const Mamba2BlockStepArgs& args) {
  constexpr const char* kName = "mamba2_block_step";
  return {.name = kName,
          .block = args.block,
          .x = checked_token({kName, "x", args.x}),
          .out = checked_token({kName, "out", args.out}),
          .states = args.states};
}

}  // namespace

void mamba2_block_forward(const Mamba2BlockForwardArgs& args, const Context& context) {
  run_block<Sequence>(call_of(args), context);
}

std::size_t mamba2_block_forward_workspace_bytes(const Mamba2BlockForwardArgs& args,
                                                 const DeviceProperties& device,
                                                 bool batch_invariant) {
  return block_bytes<Sequence>(call_of(args), device, batch_invariant);
}

void mamba2_block_step(const Mamba2BlockStepArgs& args, const Context& context) {
  run_block<Sequence>(call_of(args), context);
}

std::size_t mamba2_block_step_workspace_bytes(const Mamba2BlockStepArgs& args,
                                              const DeviceProperties& device,
                                              bool batch_invariant) {
  return block_bytes<Sequence>(call_of(args), device, batch_invariant);
}

}  // namespace tandem
