// linear_scan: arguments -> checked problem -> backend. Host only.
#include "ops/linear_scan.h"

#include "core/environment.h"
#include "ops/scan_check.h"

namespace tandem {
namespace {

constexpr const char* kForward = "linear_scan_forward";
constexpr const char* kBackward = "linear_scan_backward";

MatrixTensor check_matrix(const Argument& argument, const Dims& shape, DType dtype, Device device) {
  check_activation(argument, "[D,d]", shape, dtype, device);
  return {argument.view.data, argument.view.strides[0]};
}

/// Checks a [B,T,d] tensor.
TokenTensor check_input(const Argument& argument, const Dims& shape, DType dtype, Device device) {
  check_activation(argument, "[B,T,d]", shape, dtype, device);
  return {argument.view.data, argument.view.strides[0], argument.view.strides[1]};
}

/// Checks u and weight, and all that must agree with them.
LinearScanForwardProblem check_inputs(const Argument& u, const TensorView& weight,
                                      const ScanInputs& inputs) {
  const Argument matrix{u.op, "weight", weight};
  check_rank(u, "[B,T,d]", 3);
  check_rank(matrix, "[D,d]", 2);
  check_extents(u, "d", 1);
  check_extents(matrix, "D and d", 2);
  check_activation_dtype(u);
  const DType dtype = u.view.dtype;
  const Device device = u.view.device;
  const Dims& shape = u.view.shape;
  LinearScanForwardProblem problem;
  problem.d = static_cast<int>(shape[2]);
  problem.u = check_input(u, shape, dtype, device);
  problem.weight = check_matrix(matrix, {weight.shape[0], shape[2]}, dtype, device);
  static_cast<ScanRecurrence&>(problem) =
      check_scan(u.op, inputs, {shape[0], shape[1], weight.shape[0]}, dtype, device);
  return problem;
}

}  // namespace

LinearScanForwardProblem make_problem(const LinearScanForwardArgs& args) {
  const ScanInputs scan = ScanInputs::of(args);
  LinearScanForwardProblem problem = check_inputs({kForward, "u", args.u}, args.weight, scan);
  problem.out = check_tokens({kForward, "out", args.out}, problem);
  problem.final_state = check_state(kForward, "final_state", args.final_state, problem);
  Arguments inputs(kForward);
  inputs.add("u", args.u);
  inputs.add("weight", args.weight);
  scan.add_to(inputs);
  check_scan_outputs(kForward, args.out, args.final_state, args.initial_state, inputs);
  return problem;
}

LinearScanBackwardProblem make_problem(const LinearScanBackwardArgs& args) {
  LinearScanBackwardProblem problem;
  LinearScanForwardProblem& f = problem.forward;
  f = check_inputs({kBackward, "u", args.u}, args.weight, ScanInputs::of(args));
  check_scan_gradients(kBackward, args, f, problem);
  if (args.du) {
    problem.du = check_input({kBackward, "du", *args.du}, args.u.shape, f.dtype, f.device);
  }
  if (args.d_weight) {
    problem.d_weight =
        check_matrix({kBackward, "d_weight", *args.d_weight}, {f.D, f.d}, f.dtype, f.device);
  }
  Arguments inputs(kBackward), outputs(kBackward);
  inputs.add("u", args.u);
  inputs.add("weight", args.weight);
  outputs.add("du", args.du);
  outputs.add("d_weight", args.d_weight);
  add_scan_gradients(args, inputs, outputs);
  check_outputs(outputs, inputs);
  return problem;
}

void linear_scan_forward(const LinearScanForwardArgs& args, const Context& context) {
  const LinearScanForwardProblem problem = make_problem(args);
  if (problem.device.type == DeviceType::kCpu) {
    cpu::linear_scan_forward(problem);
  } else {
    cuda::linear_scan_forward(problem, context, call_options_from_environment());
  }
}

std::size_t linear_scan_forward_workspace_bytes(const LinearScanForwardArgs& args,
                                                const DeviceProperties& device) {
  const LinearScanForwardProblem problem = make_problem(args);
  check_device_type(kForward, problem.device, device);
  if (device.type == DeviceType::kCpu) return 0;
  return cuda::linear_scan_forward_workspace_bytes(problem, device,
                                                   call_options_from_environment());
}

void linear_scan_backward(const LinearScanBackwardArgs& args, const Context& context) {
  const LinearScanBackwardProblem problem = make_problem(args);
  if (problem.forward.device.type == DeviceType::kCpu) {
    cpu::linear_scan_backward(problem);
  } else {
    cuda::linear_scan_backward(problem, context, call_options_from_environment());
  }
}

std::size_t linear_scan_backward_workspace_bytes(const LinearScanBackwardArgs& args,
                                                 const DeviceProperties& device) {
  const LinearScanBackwardProblem problem = make_problem(args);
  check_device_type(kBackward, problem.forward.device, device);
  if (device.type == DeviceType::kCpu) return 0;
  return cuda::linear_scan_backward_workspace_bytes(problem, device,
                                                    call_options_from_environment());
}

}  // namespace tandem
