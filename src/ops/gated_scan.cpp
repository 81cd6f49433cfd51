// gated_scan: its tables, and arguments -> checked problem. Host only.
#include "ops/gated_scan.h"

#include "ops/call.h"
#include "ops/scan_rows.h"

namespace tandem {
namespace {

using Forward = GatedScanForwardArgs;
using Backward = GatedScanBackwardArgs;

/// The problem of x and all that a forward and its backward read beside it.
template <class Args>
GatedScanForwardProblem inputs_of(const Args& args) {
  GatedScanForwardProblem problem;
  static_cast<ScanRecurrence&>(problem) = scan_recurrence(args, args.x, args.x.shape[2]);
  problem.x = token_tensor(args.x);
  return problem;
}

}  // namespace

const Signature& gated_scan_forward_signature() {
  static const Signature signature = make_signature<Forward>(
      "gated_scan_forward",
      scan_forward_table<Forward>({input<&Forward::x>("x", "B,T,D", Element::kAny)}),
      {cpu::gated_scan_forward, TANDEM_CUDA_ENTRY(gated_scan_forward),
       TANDEM_CUDA_ENTRY(gated_scan_forward_workspace_bytes)});
  return signature;
}

const Signature& gated_scan_backward_signature() {
  static const Signature signature = make_signature<Backward>(
      "gated_scan_backward",
      scan_backward_table<Backward>({input<&Backward::x>("x", "B,T,D", Element::kAny)},
                                    {gradient<&Backward::dx>("dx", "x")}),
      {cpu::gated_scan_backward, TANDEM_CUDA_ENTRY(gated_scan_backward),
       TANDEM_CUDA_ENTRY(gated_scan_backward_workspace_bytes)});
  return signature;
}

GatedScanForwardProblem make_problem(const GatedScanForwardArgs& args) {
  gated_scan_forward_signature().check(&args);
  GatedScanForwardProblem problem = inputs_of(args);
  problem.out = token_tensor(args.out);
  problem.final_state = state_data(args.final_state);
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

}  // namespace tandem
