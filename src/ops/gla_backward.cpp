// gla_backward: arguments -> checked problem -> backend. Host only.
#include <cmath>
#include <string>

#include "core/check.h"
#include "core/environment.h"
#include "ops/gla.h"
#include "ops/gla_check.h"

namespace tandem {
namespace {

constexpr const char* kOp = "gla_backward";

void check_overlaps(const GlaBackwardArgs& args) {
  Arguments inputs(kOp), outputs(kOp);
  inputs.add("q", args.q);
  inputs.add("k", args.k);
  inputs.add("v", args.v);
  inputs.add("d_o", args.d_o);
  inputs.add("log_decay", args.log_decay);
  inputs.add("initial_state", args.initial_state);
  inputs.add("cu_seqlens", args.cu_seqlens);
  inputs.add("d_final_state", args.d_final_state);
  outputs.add("dq", args.dq);
  outputs.add("dk", args.dk);
  outputs.add("dv", args.dv);
  outputs.add("d_log_decay", args.d_log_decay);
  outputs.add("d_initial_state", args.d_initial_state);
  check_outputs(outputs, inputs);
}

DecayGradient check_decay_gradient(const GlaBackwardArgs& args, Device device) {
  if (!args.d_log_decay) return {};
  if (!args.log_decay) refuse(kOp, "d_log_decay needs log_decay");
  const TensorView& view = *args.d_log_decay;
  const Argument argument{kOp, "d_log_decay", view};
  const bool per_token = args.log_decay->shape.rank() == 3;
  check_shape(argument, per_token ? "[B,T,H]" : "[H]", args.log_decay->shape);
  check_dtype(argument, DType::kFloat32);
  check_device(argument, device);
  check_data(argument);
  check_alignment(argument);
  auto* data = static_cast<float*>(view.data);
  if (!per_token) return {data, 0, 0, view.strides[0], false};
  return {data, view.strides[0], view.strides[1], view.strides[2], true};
}

}  // namespace

GlaBackwardProblem make_problem(const GlaBackwardArgs& args) {
  GlaBackwardProblem problem;
  GlaForwardProblem& f = problem.forward;
  static_cast<GlaRecurrence&>(f) =
      check_recurrence({kOp, "q", args.q}, args.k, args.v, args.log_decay, args.cu_seqlens);
  const double scale = args.scale.value_or(1.0 / std::sqrt(static_cast<double>(f.K)));
  if (!std::isfinite(scale)) refuse(kOp, "scale must be finite, got " + std::to_string(scale));
  f.scale = static_cast<float>(scale);
  f.q = strided(args.q);

  const auto activation = [&](const char* name, const char* axes, const TensorView& view,
                              const Dims& shape) {
    check_activation({kOp, name, view}, axes, shape, f.dtype, f.device);
    return strided(view);
  };
  const Dims &keys = args.q.shape, &values = args.v.shape;
  problem.d_o = activation("d_o", "[B,T,H,V]", args.d_o, values);
  if (args.dq) problem.dq = activation("dq", "[B,T,HQ,K]", *args.dq, keys);
  if (args.dk) problem.dk = activation("dk", "[B,T,HQ,K]", *args.dk, keys);
  if (args.dv) problem.dv = activation("dv", "[B,T,H,V]", *args.dv, values);
  problem.d_log_decay = check_decay_gradient(args, f.device);

  const auto state = [&](const char* name, const std::optional<TensorView>& view) -> float* {
    if (!view) return nullptr;
    check_contiguous_operand({kOp, name, *view}, args.cu_seqlens ? "[N,H,K,V]" : "[B,H,K,V]",
                             {f.N, f.H, f.K, f.V}, DType::kFloat32, f.device);
    return static_cast<float*>(view->data);
  };
  f.initial_state = state("initial_state", args.initial_state);
  problem.d_final_state = state("d_final_state", args.d_final_state);
  problem.d_initial_state = state("d_initial_state", args.d_initial_state);
  check_overlaps(args);
  return problem;
}

void gla_backward(const GlaBackwardArgs& args, const Context& context) {
  const GlaBackwardProblem problem = make_problem(args);
  if (problem.forward.device.type == DeviceType::kCpu) {
    cpu::gla_backward(problem);
  } else {
    cuda::gla_backward(problem, context, call_options_from_environment());
  }
}

std::size_t gla_backward_workspace_bytes(const GlaBackwardArgs& args,
                                         const DeviceProperties& device) {
  const GlaBackwardProblem problem = make_problem(args);
  check_device_type(kOp, problem.forward.device, device);
  return device.type == DeviceType::kCpu
             ? 0
             : cuda::gla_backward_workspace_bytes(problem, device, call_options_from_environment());
}

}  // namespace tandem
