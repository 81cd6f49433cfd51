// gated_scan: arguments -> checked problem -> backend. Host only.
#include "ops/gated_scan.h"

#include "core/environment.h"
#include "ops/scan_check.h"

namespace tandem {
namespace {

constexpr const char* kForward = "gated_scan_forward";
constexpr const char* kBackward = "gated_scan_backward";

/// Checks x, and all that must agree with it.
GatedScanForwardProblem check_inputs(const Argument& x, const ScanInputs& inputs) {
  check_rank(x, "[B,T,D]", 3);
  check_extents(x, "D", 1);
  check_scan_dtype(x);
  check_activation(x, "[B,T,D]", x.view.shape, x.view.dtype, x.view.device);
  GatedScanForwardProblem problem;
  static_cast<ScanRecurrence&>(problem) =
      check_scan(x.op, inputs, x.view.shape, x.view.dtype, x.view.device);
  problem.x = check_tokens(x, problem);
  return problem;
}

}  // namespace

GatedScanForwardProblem make_problem(const GatedScanForwardArgs& args) {
  const ScanInputs scan = ScanInputs::of(args);
  GatedScanForwardProblem problem = check_inputs({kForward, "x", args.x}, scan);
  problem.out = check_tokens({kForward, "out", args.out}, problem);
  problem.final_state = check_state(kForward, "final_state", args.final_state, problem);
  Arguments inputs(kForward);
  inputs.add("x", args.x);
  scan.add_to(inputs);
  check_scan_outputs(kForward, args.out, args.final_state, args.initial_state, inputs);
  return problem;
}

GatedScanBackwardProblem make_problem(const GatedScanBackwardArgs& args) {
  GatedScanBackwardProblem problem;
  GatedScanForwardProblem& f = problem.forward;
  f = check_inputs({kBackward, "x", args.x}, ScanInputs::of(args));
  check_scan_gradients(kBackward, args, f, problem);
  if (args.dx) problem.dx = check_tokens({kBackward, "dx", *args.dx}, f);

  Arguments inputs(kBackward), outputs(kBackward);
  inputs.add("x", args.x);
  outputs.add("dx", args.dx);
  add_scan_gradients(args, inputs, outputs);
  check_outputs(outputs, inputs);
  return problem;
}

void gated_scan_forward(const GatedScanForwardArgs& args, const Context& context) {
  const GatedScanForwardProblem problem = make_problem(args);
  if (problem.device.type == DeviceType::kCpu) {
    cpu::gated_scan_forward(problem);
  } else {
    cuda::gated_scan_forward(problem, context, call_options_from_environment());
  }
}

std::size_t gated_scan_forward_workspace_bytes(const GatedScanForwardArgs& args,
                                               const DeviceProperties& device) {
  const GatedScanForwardProblem problem = make_problem(args);
  check_device_type(kForward, problem.device, device);
  if (device.type == DeviceType::kCpu) return 0;
  return cuda::gated_scan_forward_workspace_bytes(problem, device, call_options_from_environment());
}

void gated_scan_backward(const GatedScanBackwardArgs& args, const Context& context) {
  const GatedScanBackwardProblem problem = make_problem(args);
  if (problem.forward.device.type == DeviceType::kCpu) {
    cpu::gated_scan_backward(problem);
  } else {
    cuda::gated_scan_backward(problem, context, call_options_from_environment());
  }
}

std::size_t gated_scan_backward_workspace_bytes(const GatedScanBackwardArgs& args,
                                                const DeviceProperties& device) {
  const GatedScanBackwardProblem problem = make_problem(args);
  check_device_type(kBackward, problem.forward.device, device);
  if (device.type == DeviceType::kCpu) return 0;
  return cuda::gated_scan_backward_workspace_bytes(problem, device,
                                                   call_options_from_environment());
}

}  // namespace tandem
