// linear_scan: its tables, and arguments -> checked problem. Host only.
#include "ops/linear_scan.h"

#include "ops/call.h"
#include "ops/scan_rows.h"

namespace tandem {
namespace {

using Forward = LinearScanForwardArgs;
using Backward = LinearScanBackwardArgs;

std::vector<Parameter> forward_table() {
  std::vector<Parameter> table =
      scan_forward_table<Forward>({input<&Forward::u>("u", "B,T,d", Element::kMatrix),
                                   input<&Forward::weight>("weight", "D,d")});
  table.push_back(output<&Forward::x>("x", "B,T,D"));
  table.push_back(kept_states_output<Forward>());
  return table;
}

std::vector<Parameter> backward_table() {
  std::vector<Parameter> table = scan_backward_table<Backward>(
      {input<&Backward::u>("u", "B,T,d", Element::kMatrix),
       input<&Backward::weight>("weight", "D,d")},
      {gradient<&Backward::du>("du", "u"), gradient<&Backward::d_weight>("d_weight", "weight")});
  table.push_back(input<&Backward::x>("x", "B,T,D"));
  table.push_back(kept_states_input<Backward>());
  return table;
}

/// The problem of u, weight and all that a forward and its backward read beside them.
template <class Args>
LinearScanForwardProblem inputs_of(const Args& args) {
  LinearScanForwardProblem problem;
  static_cast<ScanRecurrence&>(problem) = scan_recurrence(args, args.u, args.weight.shape[0]);
  problem.d = static_cast<int>(args.u.shape[2]);
  problem.u = token_tensor(args.u);
  problem.weight = matrix_tensor(args.weight);
  return problem;
}

}  // namespace

const Signature& linear_scan_forward_signature() {
  static const Signature signature =
      make_signature<Forward>("linear_scan_forward", forward_table(),
                              {cpu::linear_scan_forward, TANDEM_CUDA_ENTRY(linear_scan_forward),
                               TANDEM_CUDA_ENTRY(linear_scan_forward_workspace_bytes)});
  return signature;
}

const Signature& linear_scan_backward_signature() {
  static const Signature signature =
      make_signature<Backward>("linear_scan_backward", backward_table(),
                               {cpu::linear_scan_backward, TANDEM_CUDA_ENTRY(linear_scan_backward),
                                TANDEM_CUDA_ENTRY(linear_scan_backward_workspace_bytes)});
  return signature;
}

LinearScanForwardProblem make_problem(const LinearScanForwardArgs& args) {
  linear_scan_forward_signature().check(&args);
  LinearScanForwardProblem problem = inputs_of(args);
  problem.out = token_tensor(args.out);
  problem.final_state = state_data(args.final_state);
  problem.x = token_tensor(args.x);
  problem.states = state_data(args.states);
  return problem;
}

LinearScanBackwardProblem make_problem(const LinearScanBackwardArgs& args) {
  const Signature& signature = linear_scan_backward_signature();
  signature.check(&args);
  if (args.states && !args.x) refuse(signature.name(), "states needs x");
  LinearScanBackwardProblem problem;
  problem.forward = inputs_of(args);
  static_cast<ScanGradients&>(problem) = scan_gradients(args);
  problem.x = token_tensor(args.x);
  problem.du = token_tensor(args.du);
  problem.d_weight = matrix_tensor(args.d_weight);
  return problem;
}

void linear_scan_forward(const LinearScanForwardArgs& args, const Context& context) {
  run(linear_scan_forward_signature(), &args, context);
}

std::size_t linear_scan_forward_workspace_bytes(const LinearScanForwardArgs& args,
                                                const DeviceProperties& device,
                                                bool batch_invariant) {
  return workspace_bytes(linear_scan_forward_signature(), &args, device, batch_invariant);
}

void linear_scan_backward(const LinearScanBackwardArgs& args, const Context& context) {
  run(linear_scan_backward_signature(), &args, context);
}

std::size_t linear_scan_backward_workspace_bytes(const LinearScanBackwardArgs& args,
                                                 const DeviceProperties& device,
                                                 bool batch_invariant) {
  return workspace_bytes(linear_scan_backward_signature(), &args, device, batch_invariant);
}

}  // namespace tandem
