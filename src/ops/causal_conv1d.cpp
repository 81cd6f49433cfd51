// causal_conv1d: its tables, and arguments -> checked problem. Host only.
#include "ops/causal_conv1d.h"

#include "ops/call.h"
#include "ops/views.h"

namespace tandem {
namespace {

using Forward = CausalConv1dForwardArgs;
using Backward = CausalConv1dBackwardArgs;
using Step = CausalConv1dStepArgs;

constexpr const char* kStateAxes = "N,D,W-1";

/// What x is convolved with.
template <class Args>
void append_taps(std::vector<Parameter>& table) {
  table.push_back(input<&Args::weight>("weight", "D,W", Element::kSameOrFp32));
  table.push_back(input<&Args::bias>("bias", "D", Element::kSameOrFp32));
  table.push_back(choice_of_two<&Args::silu>("silu"));
}

/// The inputs of the forward and its backward.
template <class Args>
std::vector<Parameter> inputs_table() {
  std::vector<Parameter> table = {input<&Args::x>("x", "B,T,D", Element::kAny)};
  append_taps<Args>(table);
  table.push_back(
      input<&Args::initial_state>("initial_state", kStateAxes, Element::kSame, Layout::kFree));
  table.push_back(cu_seqlens<&Args::cu_seqlens>());
  return table;
}

std::vector<Parameter> forward_table() {
  std::vector<Parameter> table = inputs_table<Forward>();
  table.push_back(output<&Forward::out>("out", "B,T,D"));
  table.push_back(
      output<&Forward::final_state>("final_state", kStateAxes, Element::kSame, Layout::kFree));
  return table;
}

std::vector<Parameter> backward_table() {
  std::vector<Parameter> table = inputs_table<Backward>();
  table.push_back(input<&Backward::d_out>("d_out", "B,T,D"));
  table.push_back(
      input<&Backward::d_final_state>("d_final_state", kStateAxes, Element::kSame, Layout::kFree));
  table.push_back(gradient<&Backward::dx>("dx", "x"));
  table.push_back(gradient<&Backward::d_weight>("d_weight", "weight"));
  table.push_back(gradient<&Backward::d_bias>("d_bias", "bias"));
  table.push_back(gradient<&Backward::d_initial_state>("d_initial_state", "initial_state", false));
  return table;
}

std::vector<Parameter> step_table() {
  std::vector<Parameter> table = {input<&Step::x>("x", "B,D", Element::kAny)};
  append_taps<Step>(table);
  table.push_back(in_place<&Step::state>("state", "B,D,W-1", Element::kSame));
  table.back().layout = Layout::kFree;
  table.push_back(output<&Step::out>("out", "B,D"));
  return table;
}

/// Checks the width, whose axis the states' shapes are made of, before all else, but for one of 0,
/// which no tensor may have.
void check_taps(const Signature& signature, const TensorView& weight) {
  const Argument argument{signature.name(), "weight", weight};
  check_rank(argument, "[D,W]", 2);
  const std::int64_t W = weight.shape[1];
  if (W == 0 || (W >= kFewestTaps && W <= kMostTaps)) return;
  refuse(signature.name(), "weight must have W in [2,4], got shape " + to_string(weight.shape));
}

template <class Args>
void check(const Signature& signature, const Args& args) {
  check_taps(signature, args.weight);
  signature.check(&args);
}

ConvState conv_state(const TensorView& view) {
  return {view.data, view.strides[0], view.strides[1], view.strides[2]};
}
ConvState conv_state(const std::optional<TensorView>& view) {
  return view ? conv_state(*view) : ConvState{};
}

ConvTaps conv_taps(const TensorView& view) { return {view.data, view.strides[0], view.dtype}; }
ConvTaps conv_taps(const std::optional<TensorView>& view) {
  return view ? conv_taps(*view) : ConvTaps{};
}

template <class Args>
CausalConv1d convolution_of(const Args& args) {
  CausalConv1d convolution;
  convolution.dtype = args.x.dtype;
  convolution.device = args.x.device;
  convolution.B = convolution.N = args.x.shape[0];
  convolution.T = args.x.shape.rank() == 3 ? args.x.shape[1] : 1;
  convolution.D = static_cast<int>(args.weight.shape[0]);
  convolution.W = static_cast<int>(args.weight.shape[1]);
  convolution.silu = args.silu;
  convolution.weight = conv_taps(args.weight);
  convolution.bias = conv_taps(args.bias);
  return convolution;
}

/// What a forward and its backward have in common.
template <class Args>
CausalConv1dForwardProblem inputs_of(const Args& args) {
  CausalConv1dForwardProblem problem;
  static_cast<CausalConv1d&>(problem) = convolution_of(args);
  problem.N = sequence_count(args.cu_seqlens, problem.B);
  problem.x = token_tensor(args.x);
  problem.initial_state = conv_state(args.initial_state);
  problem.cu_seqlens = offsets_data(args.cu_seqlens);
  return problem;
}

}  // namespace

const Signature& causal_conv1d_forward_signature() {
  static const Signature signature = make_signature<Forward>(
      "causal_conv1d_forward", forward_table(),
      {cpu::causal_conv1d_forward, TANDEM_CUDA_ENTRY(causal_conv1d_forward)});
  return signature;
}

const Signature& causal_conv1d_backward_signature() {
  static const Signature signature = make_signature<Backward>(
      "causal_conv1d_backward", backward_table(),
      {cpu::causal_conv1d_backward, TANDEM_CUDA_ENTRY(causal_conv1d_backward),
       TANDEM_CUDA_ENTRY(causal_conv1d_backward_workspace_bytes)});
  return signature;
}

const Signature& causal_conv1d_step_signature() {
  static const Signature signature =
      make_signature<Step>("causal_conv1d_step", step_table(),
                           {cpu::causal_conv1d_step, TANDEM_CUDA_ENTRY(causal_conv1d_step)});
  return signature;
}

CausalConv1dForwardProblem make_problem(const CausalConv1dForwardArgs& args) {
  check(causal_conv1d_forward_signature(), args);
  CausalConv1dForwardProblem problem = inputs_of(args);
  problem.out = token_tensor(args.out);
  problem.final_state = conv_state(args.final_state);
  return problem;
}

CausalConv1dBackwardProblem make_problem(const CausalConv1dBackwardArgs& args) {
  check(causal_conv1d_backward_signature(), args);
  CausalConv1dBackwardProblem problem;
  problem.forward = inputs_of(args);
  problem.d_out = token_tensor(args.d_out);
  problem.d_final_state = conv_state(args.d_final_state);
  problem.dx = token_tensor(args.dx);
  problem.d_weight = conv_taps(args.d_weight);
  problem.d_bias = conv_taps(args.d_bias);
  problem.d_initial_state = conv_state(args.d_initial_state);
  return problem;
}

CausalConv1dStepProblem make_problem(const CausalConv1dStepArgs& args) {
  check(causal_conv1d_step_signature(), args);
  CausalConv1dStepProblem problem;
  static_cast<CausalConv1d&>(problem) = convolution_of(args);
  problem.x = matrix_tensor(args.x);
  problem.state = conv_state(args.state);
  problem.out = matrix_tensor(args.out);
  return problem;
}

void causal_conv1d_forward(const CausalConv1dForwardArgs& args, const Context& context) {
  run(causal_conv1d_forward_signature(), &args, context);
}

std::size_t causal_conv1d_forward_workspace_bytes(const CausalConv1dForwardArgs& args,
                                                  const DeviceProperties& device,
                                                  bool batch_invariant) {
  return workspace_bytes(causal_conv1d_forward_signature(), &args, device, batch_invariant);
}

void causal_conv1d_backward(const CausalConv1dBackwardArgs& args, const Context& context) {
  run(causal_conv1d_backward_signature(), &args, context);
}

std::size_t causal_conv1d_backward_workspace_bytes(const CausalConv1dBackwardArgs& args,
                                                   const DeviceProperties& device,
                                                   bool batch_invariant) {
  return workspace_bytes(causal_conv1d_backward_signature(), &args, device, batch_invariant);
}

void causal_conv1d_step(const CausalConv1dStepArgs& args, const Context& context) {
  run(causal_conv1d_step_signature(), &args, context);
}

}  // namespace tandem
