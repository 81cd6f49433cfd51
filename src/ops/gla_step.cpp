// gla_step: arguments -> checked problem -> backend. Host only.
#include <string>

#include "core/environment.h"
#include "ops/gla.h"
#include "ops/gla_check.h"

namespace tandem {
namespace {

constexpr const char* kOp = "gla_step";

/// Returns a [B,heads,dim] tensor that has passed its checks as a StridedTensor.
StridedTensor token(const TensorView& view) {
  return {view.data, view.strides[0], 0, view.strides[1]};
}

StateTensor state_of(const GlaStepArgs& args, const GlaStepProblem& problem) {
  const TensorView& view = args.state;
  const Argument argument{kOp, "state", view};
  if (view.dtype != DType::kFloat32 && view.dtype != DType::kBFloat16) {
    refuse(kOp, "state must have dtype fp32 or bf16, got " + to_string(view.dtype));
  }
  check_activation(argument, "[B,H,K,V]", {problem.B, problem.H, problem.K, problem.V}, view.dtype,
                   problem.device);
  return {view.data, view.strides[0], view.strides[1], view.strides[2]};
}

void check_overlaps(const GlaStepArgs& args) {
  const Argument o{kOp, "o", args.o};
  const Argument state{kOp, "state", args.state};
  check_no_self_overlap(o);
  check_no_self_overlap(state);
  check_disjoint(o, state);
  const auto check_input = [&](const char* name, const TensorView& view) {
    const Argument input{kOp, name, view};
    check_disjoint(o, input);
    check_disjoint(state, input);
  };
  check_input("q", args.q);
  check_input("k", args.k);
  check_input("v", args.v);
  if (args.log_decay) check_input("log_decay", *args.log_decay);
}

}  // namespace

GlaStepProblem make_problem(const GlaStepArgs& args) {
  const Argument q{kOp, "q", args.q};
  const Argument v{kOp, "v", args.v};
  check_rank(q, "[B,HQ,K]", 3);
  check_rank(v, "[B,H,V]", 3);
  check_extents(q, "HQ and K", 2);
  check_extents(v, "H and V", 2);
  GlaStepProblem problem;
  problem.dtype = args.q.dtype;
  problem.device = args.q.device;
  problem.B = problem.N = args.q.shape[0];
  problem.T = 1;
  problem.HQ = static_cast<int>(args.q.shape[1]);
  problem.K = static_cast<int>(args.q.shape[2]);
  problem.H = static_cast<int>(args.v.shape[1]);
  problem.V = static_cast<int>(args.v.shape[2]);
  const DType dtype = problem.dtype;
  const Device device = problem.device;

  check_activation_dtype(q);
  const Dims values{problem.B, problem.H, problem.V};
  check_activation(q, "[B,HQ,K]", args.q.shape, dtype, device);
  check_activation({kOp, "k", args.k}, "[B,HQ,K]", args.q.shape, dtype, device);
  check_activation(v, "[B,H,V]", values, dtype, device);
  check_activation({kOp, "o", args.o}, "[B,H,V]", values, dtype, device);
  check_head_groups(q, problem.H, problem.HQ);
  if (args.log_decay) {
    problem.log_decay =
        check_decay({kOp, "log_decay", *args.log_decay}, "[B,H]", {problem.B, problem.H}, device);
  }
  problem.scale = check_scale(kOp, args.scale, problem.K);
  problem.state_dtype = args.state.dtype;
  problem.state = state_of(args, problem);
  problem.q = token(args.q);
  problem.k = token(args.k);
  problem.v = token(args.v);
  problem.o = token(args.o);
  check_overlaps(args);
  return problem;
}

void gla_step(const GlaStepArgs& args, const Context& context) {
  const GlaStepProblem problem = make_problem(args);
  if (problem.device.type == DeviceType::kCpu) {
    cpu::gla_step(problem);
  } else {
    cuda::gla_step(problem, context, call_options_from_environment());
  }
}

}  // namespace tandem
