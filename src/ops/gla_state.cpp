// gla_state_forward: arguments -> checked problem -> backend. Host only.
#include "core/check.h"
#include "core/environment.h"
#include "ops/gla.h"
#include "ops/gla_check.h"

namespace tandem {
namespace {

constexpr const char* kOp = "gla_state_forward";

void check_overlaps(const GlaStateForwardArgs& args) {
  const Argument state{kOp, "state", args.state};
  const Argument total{kOp, "total_log_decay", args.total_log_decay};
  check_disjoint(state, total);
  const auto check_input = [&](const char* name, const TensorView& view) {
    check_disjoint(state, {kOp, name, view});
    check_disjoint(total, {kOp, name, view});
  };
  check_input("k", args.k);
  check_input("v", args.v);
  if (args.log_decay) check_input("log_decay", *args.log_decay);
  if (args.cu_seqlens) check_input("cu_seqlens", *args.cu_seqlens);
}

}  // namespace

GlaStateForwardProblem make_problem(const GlaStateForwardArgs& args) {
  GlaStateForwardProblem problem;
  static_cast<GlaRecurrence&>(problem) =
      check_recurrence({kOp, "k", args.k}, args.k, args.v, args.log_decay, args.cu_seqlens);
  const Dims state_shape{problem.N, problem.H, problem.K, problem.V};
  check_contiguous_operand({kOp, "state", args.state}, args.cu_seqlens ? "[N,H,K,V]" : "[B,H,K,V]",
                           state_shape, DType::kFloat32, problem.device);
  check_contiguous_operand({kOp, "total_log_decay", args.total_log_decay},
                           args.cu_seqlens ? "[N,H]" : "[B,H]", {problem.N, problem.H},
                           DType::kFloat32, problem.device);
  check_overlaps(args);
  problem.state = static_cast<float*>(args.state.data);
  problem.total_log_decay = static_cast<float*>(args.total_log_decay.data);
  return problem;
}

void gla_state_forward(const GlaStateForwardArgs& args, const Context& context) {
  const GlaStateForwardProblem problem = make_problem(args);
  if (problem.device.type == DeviceType::kCpu) {
    cpu::gla_state_forward(problem);
  } else {
    cuda::gla_state_forward(problem, context, call_options_from_environment());
  }
}

std::size_t gla_state_forward_workspace_bytes(const GlaStateForwardArgs& args,
                                              const DeviceProperties& device) {
  const GlaStateForwardProblem problem = make_problem(args);
  check_device_type(kOp, problem.device, device);
  return device.type == DeviceType::kCpu ? 0
                                         : cuda::gla_state_forward_workspace_bytes(
                                               problem, device, call_options_from_environment());
}

}  // namespace tandem
