// gla_state_backward: arguments -> checked problem -> backend. Host only.
#include <cmath>
#include <string>

#include "core/check.h"
#include "core/environment.h"
#include "ops/gla.h"
#include "ops/gla_check.h"

namespace tandem {
namespace {

constexpr const char* kOp = "gla_state_backward";

void check_overlaps(const GlaStateBackwardArgs& args) {
  const Argument state{kOp, "d_state", args.d_state};
  const Argument total{kOp, "total_log_decay", args.total_log_decay};
  check_disjoint(state, total);
  const auto check_input = [&](const char* name, const TensorView& view) {
    check_disjoint(state, {kOp, name, view});
    check_disjoint(total, {kOp, name, view});
  };
  check_input("q", args.q);
  check_input("d_o", args.d_o);
  if (args.log_decay) check_input("log_decay", *args.log_decay);
  if (args.cu_seqlens) check_input("cu_seqlens", *args.cu_seqlens);
}

}  // namespace

GlaStateBackwardProblem make_problem(const GlaStateBackwardArgs& args) {
  GlaStateBackwardProblem problem;
  static_cast<GlaRecurrence&>(problem) = check_recurrence({kOp, "q", args.q}, args.q, args.d_o,
                                                          args.log_decay, args.cu_seqlens, "d_o");
  const double scale = args.scale.value_or(1.0 / std::sqrt(static_cast<double>(problem.K)));
  if (!std::isfinite(scale)) refuse(kOp, "scale must be finite, got " + std::to_string(scale));
  problem.scale = static_cast<float>(scale);
  check_contiguous_operand(
      {kOp, "d_state", args.d_state}, args.cu_seqlens ? "[N,H,K,V]" : "[B,H,K,V]",
      {problem.N, problem.H, problem.K, problem.V}, DType::kFloat32, problem.device);
  check_contiguous_operand({kOp, "total_log_decay", args.total_log_decay},
                           args.cu_seqlens ? "[N,H]" : "[B,H]", {problem.N, problem.H},
                           DType::kFloat32, problem.device);
  check_overlaps(args);
  problem.d_state = static_cast<float*>(args.d_state.data);
  problem.total_log_decay = static_cast<float*>(args.total_log_decay.data);
  return problem;
}

void gla_state_backward(const GlaStateBackwardArgs& args, const Context& context) {
  const GlaStateBackwardProblem problem = make_problem(args);
  if (problem.device.type == DeviceType::kCpu) {
    cpu::gla_state_backward(problem);
  } else {
    cuda::gla_state_backward(problem, context, call_options_from_environment());
  }
}

std::size_t gla_state_backward_workspace_bytes(const GlaStateBackwardArgs& args,
                                               const DeviceProperties& device) {
  const GlaStateBackwardProblem problem = make_problem(args);
  check_device_type(kOp, problem.device, device);
  return device.type == DeviceType::kCpu ? 0
                                         : cuda::gla_state_backward_workspace_bytes(
                                               problem, device, call_options_from_environment());
}

}  // namespace tandem
