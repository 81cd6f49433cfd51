// gated_scan: its tables, and arguments -> checked problem. Host only.
#include "ops/gated_scan.h"

#include "ops/call.h"
#include "ops/scan_rows.h"

namespace tandem {
namespace {

using Forward = GatedScanForwardArgs;
using Backward = GatedScanBackwardArgs;
using Decay = GatedScanDecayArgs;
using Carry = GatedScanCarryArgs;
using CarryBackward = GatedScanCarryBackwardArgs;

constexpr const char* kBeforeAxes = "B,T/64,D";
static_assert(kGatedScanChunk == 64);

/// The problem of x and all that a forward and its backward read beside it.
template <class Args>
GatedScanForwardProblem inputs_of(const Args& args) {
  GatedScanForwardProblem problem;
  static_cast<ScanRecurrence&>(problem) = scan_recurrence(args, args.x, args.x.shape[2]);
  problem.x = token_tensor(args.x);
  return problem;
}

std::vector<Parameter> forward_table() {
  std::vector<Parameter> table =
      scan_forward_table<Forward>({input<&Forward::x>("x", "B,T,D", Element::kAny)});
  table.push_back(kept_states_output<Forward>());
  return table;
}

std::vector<Parameter> backward_table() {
  std::vector<Parameter> table = scan_backward_table<Backward>(
      {input<&Backward::x>("x", "B,T,D", Element::kAny)}, {gradient<&Backward::dx>("dx", "x")});
  table.push_back(kept_states_input<Backward>());
  return table;
}

/// A call of what is between a carry and a part's outputs, `tokens`.
template <class Args>
std::vector<Parameter> carry_table(Parameter tokens, const std::vector<Parameter>& states) {
  std::vector<Parameter> table = {
      std::move(tokens), input<&Args::decay>("decay", "B,T,D", Element::kSameOrFp32),
      input<&Args::log_decay>("log_decay", "B,T,D", Element::kSameOrFp32).instead("decay"),
      input<&Args::gate>("gate", "B,T,D"),
      input<&Args::before>("before", kBeforeAxes, Element::kFp32, Layout::kContiguous)};
  table.insert(table.end(), states.begin(), states.end());
  return table;
}

/// The axes of sequences without cu_seqlens; `tokens` is [B,T,D].
void set_axes(const TensorView& tokens, ScanRecurrence& scan) {
  scan.dtype = tokens.dtype;
  scan.device = tokens.device;
  scan.B = scan.N = tokens.shape[0];
  scan.T = tokens.shape[1];
  scan.D = static_cast<int>(tokens.shape[2]);
}

}  // namespace

const Signature& gated_scan_forward_signature() {
  static const Signature signature =
      make_signature<Forward>("gated_scan_forward", forward_table(),
                              {cpu::gated_scan_forward, TANDEM_CUDA_ENTRY(gated_scan_forward),
                               TANDEM_CUDA_ENTRY(gated_scan_forward_workspace_bytes)});
  return signature;
}

const Signature& gated_scan_backward_signature() {
  static const Signature signature =
      make_signature<Backward>("gated_scan_backward", backward_table(),
                               {cpu::gated_scan_backward, TANDEM_CUDA_ENTRY(gated_scan_backward),
                                TANDEM_CUDA_ENTRY(gated_scan_backward_workspace_bytes)});
  return signature;
}

const Signature& gated_scan_decay_signature() {
  static const Signature signature = make_signature<Decay>(
      "gated_scan_decay",
      {input<&Decay::decay>("decay", "B,T,D", Element::kAny),
       choice_of_two<&Decay::is_log>("is_log"),
       output<&Decay::before>("before", kBeforeAxes, Element::kFp32, Layout::kContiguous),
       output<&Decay::total>("total", "B,D", Element::kFp32, Layout::kContiguous)},
      {cpu::gated_scan_decay, TANDEM_CUDA_ENTRY(gated_scan_decay)});
  return signature;
}

const Signature& gated_scan_carry_signature() {
  static const Signature signature = make_signature<Carry>(
      "gated_scan_carry",
      carry_table<Carry>(
          in_place<&Carry::out>("out", "B,T,D", Element::kAny),
          {input<&Carry::carry>("carry", "B,D", Element::kFp32, Layout::kContiguous)}),
      {cpu::gated_scan_carry, TANDEM_CUDA_ENTRY(gated_scan_carry)});
  return signature;
}

const Signature& gated_scan_carry_backward_signature() {
  static const Signature signature = make_signature<CarryBackward>(
      "gated_scan_carry_backward",
      carry_table<CarryBackward>(
          input<&CarryBackward::d_out>("d_out", "B,T,D", Element::kAny),
          {output<&CarryBackward::sums>("sums", kBeforeAxes, Element::kFp32, Layout::kContiguous),
           output<&CarryBackward::d_carry>("d_carry", "B,D", Element::kFp32, Layout::kContiguous)}),
      {cpu::gated_scan_carry_backward, TANDEM_CUDA_ENTRY(gated_scan_carry_backward)});
  return signature;
}

GatedScanForwardProblem make_problem(const GatedScanForwardArgs& args) {
  gated_scan_forward_signature().check(&args);
  GatedScanForwardProblem problem = inputs_of(args);
  problem.out = token_tensor(args.out);
  problem.final_state = state_data(args.final_state);
  problem.states = state_data(args.states);
  return problem;
}

GatedScanBackwardProblem make_problem(const GatedScanBackwardArgs& args) {
  gated_scan_backward_signature().check(&args);
  GatedScanBackwardProblem problem;
  problem.forward = inputs_of(args);
  static_cast<ScanGradients&>(problem) = scan_gradients(args);
  problem.dx = token_tensor(args.dx);
  return problem;
}

GatedScanDecayProblem make_problem(const GatedScanDecayArgs& args) {
  gated_scan_decay_signature().check(&args);
  GatedScanDecayProblem problem;
  set_axes(args.decay, problem);
  problem.decay_dtype = args.decay.dtype;
  problem.log_decay = args.is_log;
  problem.decay = token_tensor(args.decay);
  problem.before = state_data(args.before);
  problem.total = state_data(args.total);
  return problem;
}

GatedScanCarryProblem make_problem(const GatedScanCarryArgs& args) {
  gated_scan_carry_signature().check(&args);
  GatedScanCarryProblem problem;
  set_axes(args.out, problem);
  set_decay(args, problem);
  problem.gate = token_tensor(args.gate);
  problem.out = token_tensor(args.out);
  problem.before = state_data(args.before);
  problem.carry = state_data(args.carry);
  return problem;
}

GatedScanCarryBackwardProblem make_problem(const GatedScanCarryBackwardArgs& args) {
  gated_scan_carry_backward_signature().check(&args);
  GatedScanCarryBackwardProblem problem;
  set_axes(args.d_out, problem);
  set_decay(args, problem);
  problem.gate = token_tensor(args.gate);
  problem.d_out = token_tensor(args.d_out);
  problem.before = state_data(args.before);
  problem.sums = state_data(args.sums);
  problem.d_carry = state_data(args.d_carry);
  return problem;
}

void gated_scan_forward(const GatedScanForwardArgs& args, const Context& context) {
  run(gated_scan_forward_signature(), &args, context);
}

std::size_t gated_scan_forward_workspace_bytes(const GatedScanForwardArgs& args,
                                               const DeviceProperties& device,
                                               bool batch_invariant) {
  return workspace_bytes(gated_scan_forward_signature(), &args, device, batch_invariant);
}

void gated_scan_backward(const GatedScanBackwardArgs& args, const Context& context) {
  run(gated_scan_backward_signature(), &args, context);
}

std::size_t gated_scan_backward_workspace_bytes(const GatedScanBackwardArgs& args,
                                                const DeviceProperties& device,
                                                bool batch_invariant) {
  return workspace_bytes(gated_scan_backward_signature(), &args, device, batch_invariant);
}

void gated_scan_decay(const GatedScanDecayArgs& args, const Context& context) {
  run(gated_scan_decay_signature(), &args, context);
}

void gated_scan_carry(const GatedScanCarryArgs& args, const Context& context) {
  run(gated_scan_carry_signature(), &args, context);
}

void gated_scan_carry_backward(const GatedScanCarryBackwardArgs& args, const Context& context) {
  run(gated_scan_carry_backward_signature(), &args, context);
}

}  // namespace tandem
