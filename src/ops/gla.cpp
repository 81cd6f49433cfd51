// gla: arguments -> checked problem -> backend. Host only.
#include "ops/gla.h"

#include <string>

#include "core/check.h"
#include "core/environment.h"
#include "ops/gla_check.h"

namespace tandem {
namespace {

constexpr const char* kOp = "gla_forward";

void check_overlaps(const GlaForwardArgs& args) {
  const Argument o{kOp, "o", args.o};
  check_no_self_overlap(o);
  const auto check_input = [&](const char* name, const TensorView& view) {
    const Argument input{kOp, name, view};
    check_disjoint(o, input);
    if (args.final_state) check_disjoint({kOp, "final_state", *args.final_state}, input);
  };
  check_input("q", args.q);
  check_input("k", args.k);
  check_input("v", args.v);
  if (args.log_decay) check_input("log_decay", *args.log_decay);
  if (args.cu_seqlens) check_input("cu_seqlens", *args.cu_seqlens);
  if (args.initial_state) {
    check_disjoint(o, {kOp, "initial_state", *args.initial_state});
    const bool in_place = args.final_state && args.final_state->data == args.initial_state->data;
    if (args.final_state && !in_place) {
      check_disjoint({kOp, "final_state", *args.final_state},
                     {kOp, "initial_state", *args.initial_state});
    }
  }
  if (args.final_state) check_disjoint(o, {kOp, "final_state", *args.final_state});
}

}  // namespace

GlaForwardProblem make_problem(const GlaForwardArgs& args) {
  GlaForwardProblem problem;
  static_cast<GlaRecurrence&>(problem) =
      check_recurrence({kOp, "q", args.q}, args.k, args.v, args.log_decay, args.cu_seqlens);
  check_activation({kOp, "o", args.o}, "[B,T,H,V]", {problem.B, problem.T, problem.H, problem.V},
                   problem.dtype, problem.device);
  problem.scale = check_scale(kOp, args.scale, problem.K);

  const char* state_axes = args.cu_seqlens ? "[N,H,K,V]" : "[B,H,K,V]";
  const Dims state_shape{problem.N, problem.H, problem.K, problem.V};
  if (args.initial_state) {
    check_contiguous_operand({kOp, "initial_state", *args.initial_state}, state_axes, state_shape,
                             DType::kFloat32, problem.device);
    problem.initial_state = static_cast<const float*>(args.initial_state->data);
  }
  if (args.final_state) {
    check_contiguous_operand({kOp, "final_state", *args.final_state}, state_axes, state_shape,
                             DType::kFloat32, problem.device);
    problem.final_state = static_cast<float*>(args.final_state->data);
  }
  problem.q = strided(args.q);
  problem.o = strided(args.o);
  check_overlaps(args);
  return problem;
}

void gla_forward(const GlaForwardArgs& args, const Context& context) {
  const GlaForwardProblem problem = make_problem(args);
  if (problem.device.type == DeviceType::kCpu) {
    cpu::gla_forward(problem);
  } else {
    cuda::gla_forward(problem, context, call_options_from_environment());
  }
}

std::size_t gla_forward_workspace_bytes(const GlaForwardArgs& args,
                                        const DeviceProperties& device) {
  const GlaForwardProblem problem = make_problem(args);
  check_device_type(kOp, problem.device, device);
  return device.type == DeviceType::kCpu
             ? 0
             : cuda::gla_forward_workspace_bytes(problem, device, call_options_from_environment());
}

}  // namespace tandem
