// gla: arguments -> checked problem -> backend. Host only.
#include "ops/gla.h"

#include <cmath>
#include <limits>
#include <string>

#include "core/check.h"

namespace tandem {
namespace {

constexpr const char* kOp = "gla_forward";

/// Everything that q, k, v and o share.
void check_activation(const Argument& argument, const char* axes, const Dims& shape, DType dtype,
                      Device device) {
  check_shape(argument, axes, shape);
  check_dtype(argument, dtype);
  check_device(argument, device);
  check_data(argument);
  check_alignment(argument);
  check_unit_innermost_stride(argument);
}

/// Everything that a contiguous operand (states, cu_seqlens) must satisfy.
void check_contiguous_operand(const Argument& argument, const char* axes, const Dims& shape,
                              DType dtype, Device device) {
  check_shape(argument, axes, shape);
  check_dtype(argument, dtype);
  check_device(argument, device);
  check_data(argument);
  check_alignment(argument);
  check_contiguous(argument);
}

StridedTensor strided(const TensorView& view) {
  return {view.data, view.strides[0], view.strides[1], view.strides[2]};
}

DecayTensor decay_of(const GlaForwardArgs& args, const GlaForwardProblem& problem) {
  if (!args.log_decay) return {};
  const TensorView& view = *args.log_decay;
  const Argument argument{kOp, "log_decay", view};
  if (view.shape.rank() == 4) {
    throw Unsupported("[gla_forward] log_decay must have shape [H] or [B,T,H], got " +
                      to_string(view.shape) + ": a decay per key channel is not built yet");
  }
  if (view.shape.rank() == 1) {
    check_shape(argument, "[H]", {problem.H});
  } else {
    check_rank(argument, "[H] or [B,T,H]", 3);
    check_shape(argument, "[B,T,H]", {problem.B, problem.T, problem.H});
  }
  check_dtype(argument, DType::kFloat32);
  check_device(argument, problem.device);
  check_data(argument);
  check_alignment(argument);
  const auto* data = static_cast<const float*>(view.data);
  if (view.shape.rank() == 1) return {data, 0, 0, view.strides[0]};
  return {data, view.strides[0], view.strides[1], view.strides[2]};
}

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
  check_rank({kOp, "q", args.q}, "[B,T,HQ,K]", 4);
  check_rank({kOp, "v", args.v}, "[B,T,H,V]", 4);
  const Dims& q = args.q.shape;
  const Dims& v = args.v.shape;
  for (int axis = 2; axis < 4; ++axis) {
    constexpr std::int64_t kLargest = std::numeric_limits<std::int32_t>::max();
    if (q[axis] < 1 || q[axis] > kLargest) {
      refuse(kOp, "q must have HQ and K in [1,2^31), got shape " + to_string(q));
    }
    if (v[axis] < 1 || v[axis] > kLargest) {
      refuse(kOp, "v must have H and V in [1,2^31), got shape " + to_string(v));
    }
  }
  problem.dtype = args.q.dtype;
  problem.device = args.q.device;
  problem.B = q[0];
  problem.T = q[1];
  problem.HQ = static_cast<int>(q[2]);
  problem.K = static_cast<int>(q[3]);
  problem.H = static_cast<int>(v[2]);
  problem.V = static_cast<int>(v[3]);
  const std::int64_t B = problem.B, T = problem.T, H = problem.H, V = problem.V;

  const bool fp32_here = problem.device.type == DeviceType::kCpu;
  if (problem.dtype != DType::kBFloat16 && problem.dtype != DType::kFloat16 &&
      !(fp32_here && problem.dtype == DType::kFloat32)) {
    refuse(kOp, std::string("q must have dtype bf16 or fp16") + (fp32_here ? " or fp32" : "") +
                    " on " + to_string(problem.device) + ", got " + to_string(problem.dtype));
  }
  check_activation({kOp, "q", args.q}, "[B,T,HQ,K]", q, problem.dtype, problem.device);
  check_activation({kOp, "k", args.k}, "[B,T,HQ,K]", q, problem.dtype, problem.device);
  check_activation({kOp, "v", args.v}, "[B,T,H,V]", {B, T, H, V}, problem.dtype, problem.device);
  check_activation({kOp, "o", args.o}, "[B,T,H,V]", {B, T, H, V}, problem.dtype, problem.device);
  if (problem.H % problem.HQ != 0) {
    refuse(kOp, "q must have a number of heads HQ that divides H = " + std::to_string(problem.H) +
                    ", got HQ = " + std::to_string(problem.HQ));
  }

  problem.N = B;
  if (args.cu_seqlens) {
    const Argument argument{kOp, "cu_seqlens", *args.cu_seqlens};
    if (B != 1) refuse(kOp, "cu_seqlens needs B = 1, got B = " + std::to_string(B));
    check_rank(argument, "[N+1]", 1);
    const std::int64_t length = args.cu_seqlens->shape[0];
    if (length < 1) refuse(kOp, "cu_seqlens must have shape [N+1] with N >= 0, got [0]");
    check_contiguous_operand(argument, "[N+1]", {length}, DType::kInt32, problem.device);
    problem.N = length - 1;
    problem.cu_seqlens = static_cast<const std::int32_t*>(args.cu_seqlens->data);
  }

  problem.log_decay = decay_of(args, problem);
  const double scale = args.scale.value_or(1.0 / std::sqrt(static_cast<double>(problem.K)));
  if (!std::isfinite(scale)) refuse(kOp, "scale must be finite, got " + std::to_string(scale));
  problem.scale = static_cast<float>(scale);

  const char* state_axes = args.cu_seqlens ? "[N,H,K,V]" : "[B,H,K,V]";
  const Dims state_shape{problem.N, H, problem.K, V};
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
  problem.k = strided(args.k);
  problem.v = strided(args.v);
  problem.o = strided(args.o);
  check_overlaps(args);
  return problem;
}

void gla_forward(const GlaForwardArgs& args, const Context& context) {
  const GlaForwardProblem problem = make_problem(args);
  if (problem.device.type == DeviceType::kCpu) {
    cpu::gla_forward(problem);
  } else {
    cuda::gla_forward(problem, context);
  }
}

std::size_t gla_forward_workspace_bytes(const GlaForwardArgs& args,
                                        const DeviceProperties& device) {
  const GlaForwardProblem problem = make_problem(args);
  if (problem.device.type != device.type) {
    refuse(kOp, "device must be of the tensors' type, " + to_string(problem.device) + ", got " +
                    device.name);
  }
  return device.type == DeviceType::kCpu ? 0 : cuda::gla_forward_workspace_bytes(problem, device);
}

}  // namespace tandem
