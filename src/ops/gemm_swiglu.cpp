// gemm_swiglu: its tables, and arguments -> checked problem. Host only.
#include "ops/gemm_swiglu.h"

#include <cmath>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "ops/call.h"
#include "ops/views.h"

namespace tandem {
namespace {

using Forward = GemmSwigluForwardArgs;
using Backward = GemmSwigluBackwardArgs;

constexpr double kDefaultEps = 1e-6;

std::vector<Parameter> forward_table() {
  return {input<&Forward::x>("x", "M,d", Element::kMatrix),
          input<&Forward::gate_weight>("gate_weight", "F,d"),
          input<&Forward::up_weight>("up_weight", "F,d"),
          choice<&Forward::activation>("activation"),
          input<&Forward::norm_weight>("norm_weight", "d", Element::kSameOrFp32),
          number<&Forward::eps>("eps"),
          input<&Forward::rstd>("rstd", "M", Element::kFp32),
          output<&Forward::out>("out", "M,F"),
          output<&Forward::gate_slope>("gate_slope", "M,F"),
          output<&Forward::up_slope>("up_slope", "M,F"),
          output<&Forward::kept_rstd>("kept_rstd", "M", Element::kFp32)};
}

std::vector<Parameter> backward_table() {
  return {input<&Backward::x>("x", "M,d", Element::kMatrix),
          input<&Backward::gate_weight>("gate_weight", "F,d"),
          input<&Backward::up_weight>("up_weight", "F,d"),
          input<&Backward::norm_weight>("norm_weight", "d", Element::kSameOrFp32),
          input<&Backward::rstd>("rstd", "M", Element::kFp32).or_kept("kept_rstd"),
          input<&Backward::gate_slope>("gate_slope", "M,F"),
          input<&Backward::up_slope>("up_slope", "M,F"),
          input<&Backward::d_out>("d_out", "M,F"),
          gradient<&Backward::dx>("dx", "x"),
          gradient<&Backward::d_gate_weight>("d_gate_weight", "gate_weight").also_fp32(),
          gradient<&Backward::d_up_weight>("d_up_weight", "up_weight").also_fp32(),
          gradient<&Backward::d_norm_weight>("d_norm_weight", "norm_weight").also_fp32(),
          input<&Backward::addend>("addend", "M,d").in_cpp_alone(),
          flag<&Backward::accumulate>("accumulate")};
}

/// Checks what does not depend on the tensors' values: the activation, and the norm's eps.
void check_numbers(const Signature& signature, const Forward& args) {
  const auto activation = static_cast<int>(args.activation);
  if (activation < 0 || activation > static_cast<int>(GateActivation::kRelu)) {
    refuse(signature.name(),
           "activation must be 0 (silu), 1 (gelu), 2 (gelu_tanh) or 3 (relu), got " +
               std::to_string(activation));
  }
  if (!args.eps) return;
  if (!std::isfinite(*args.eps)) {
    refuse(signature.name(), "eps must be finite, got " + std::to_string(*args.eps));
  }
  if (*args.eps < 0) {
    refuse(signature.name(), "eps must not be negative, got " + std::to_string(*args.eps));
  }
}

/// Checks that the columns of both weights together can be counted by an int.
template <class Args>
void check_columns(const Signature& signature, const Args& args) {
  constexpr std::int64_t kEnd = std::int64_t{1} << 30;
  if (args.gate_weight.shape[0] >= kEnd) {
    refuse(signature.name(), "gate_weight must have less than 2^30 rows, got " +
                                 std::to_string(args.gate_weight.shape[0]));
  }
}

void check_needs(const Signature& signature, const char* name, bool given, const char* other,
                 bool other_given) {
  if (given && !other_given) refuse(signature.name(), std::string(name) + " needs " + other);
}

RmsNorm norm_of(const std::optional<TensorView>& weight, const std::optional<TensorView>& rstd,
                double eps) {
  if (!weight) return {};
  return {weight->data, weight->dtype, eps, state_data(rstd)};
}

/// Sets what a forward and a backward problem have in common.
template <class Problem, class Args>
void set_inputs(Problem& problem, const Args& args) {
  problem.dtype = args.x.dtype;
  problem.device = args.x.device;
  problem.M = args.x.shape[0];
  problem.d = static_cast<int>(args.x.shape[1]);
  problem.F = static_cast<int>(args.gate_weight.shape[0]);
  problem.x = matrix_tensor(args.x);
  problem.gate_weight = matrix_tensor(args.gate_weight);
  problem.up_weight = matrix_tensor(args.up_weight);
  problem.gate_slope = matrix_tensor(args.gate_slope);
  problem.up_slope = matrix_tensor(args.up_slope);
}

}  // namespace

const Signature& gemm_swiglu_forward_signature() {
  static const Signature signature =
      make_signature<Forward>("gemm_swiglu_forward", forward_table(),
                              {cpu::gemm_swiglu_forward, TANDEM_CUDA_ENTRY(gemm_swiglu_forward),
                               TANDEM_CUDA_ENTRY(gemm_swiglu_forward_workspace_bytes)});
  return signature;
}

const Signature& gemm_swiglu_backward_signature() {
  static const Signature signature =
      make_signature<Backward>("gemm_swiglu_backward", backward_table(),
                               {cpu::gemm_swiglu_backward, TANDEM_CUDA_ENTRY(gemm_swiglu_backward),
                                TANDEM_CUDA_ENTRY(gemm_swiglu_backward_workspace_bytes)});
  return signature;
}

GemmSwigluForwardProblem make_problem(const GemmSwigluForwardArgs& args) {
  const Signature& signature = gemm_swiglu_forward_signature();
  check_numbers(signature, args);
  signature.check(&args);
  check_columns(signature, args);
  const auto needs = [&](const char* name, bool given, const char* other, bool other_given) {
    check_needs(signature, name, given, other, other_given);
  };
  const bool normalizes = args.norm_weight.has_value();
  needs("eps", args.eps.has_value(), "norm_weight", normalizes);
  needs("rstd", args.rstd.has_value(), "norm_weight", normalizes);
  needs("kept_rstd", args.kept_rstd.has_value(), "norm_weight", normalizes);
  needs("gate_slope", args.gate_slope.has_value(), "up_slope", args.up_slope.has_value());
  needs("up_slope", args.up_slope.has_value(), "gate_slope", args.gate_slope.has_value());
  if (args.eps && args.rstd) {
    refuse(signature.name(), "eps must not be given beside rstd, which has it");
  }
  GemmSwigluForwardProblem problem;
  set_inputs(problem, args);
  problem.activation = args.activation;
  problem.norm = norm_of(args.norm_weight, args.rstd, args.eps.value_or(kDefaultEps));
  problem.out = matrix_tensor(args.out);
  problem.kept_rstd = state_data(args.kept_rstd);
  return problem;
}

GemmSwigluBackwardProblem make_problem(const GemmSwigluBackwardArgs& args) {
  const Signature& signature = gemm_swiglu_backward_signature();
  signature.check(&args);
  check_columns(signature, args);
  const auto needs = [&](const char* name, bool given, const char* other, bool other_given) {
    check_needs(signature, name, given, other, other_given);
  };
  const bool normalizes = args.norm_weight.has_value();
  needs("rstd", args.rstd.has_value(), "norm_weight", normalizes);
  needs("norm_weight", normalizes, "rstd", args.rstd.has_value());
  needs("addend", args.addend.has_value(), "norm_weight", normalizes);
  GemmSwigluBackwardProblem problem;
  set_inputs(problem, args);
  problem.norm = norm_of(args.norm_weight, args.rstd, 0);
  problem.d_out = matrix_tensor(args.d_out);
  problem.dx = matrix_tensor(args.dx);
  if (args.d_gate_weight) problem.d_gate_weight_dtype = args.d_gate_weight->dtype;
  problem.d_gate_weight = matrix_tensor(args.d_gate_weight);
  if (args.d_up_weight) problem.d_up_weight_dtype = args.d_up_weight->dtype;
  problem.d_up_weight = matrix_tensor(args.d_up_weight);
  if (args.d_norm_weight) problem.d_norm_weight_dtype = args.d_norm_weight->dtype;
  problem.d_norm_weight = args.d_norm_weight ? args.d_norm_weight->data : nullptr;
  problem.addend = matrix_tensor(args.addend);
  problem.accumulate = args.accumulate;
  return problem;
}

void gemm_swiglu_forward(const GemmSwigluForwardArgs& args, const Context& context) {
  run(gemm_swiglu_forward_signature(), &args, context);
}

std::size_t gemm_swiglu_forward_workspace_bytes(const GemmSwigluForwardArgs& args,
                                                const DeviceProperties& device,
                                                bool batch_invariant) {
  return workspace_bytes(gemm_swiglu_forward_signature(), &args, device, batch_invariant);
}

void gemm_swiglu_backward(const GemmSwigluBackwardArgs& args, const Context& context) {
  run(gemm_swiglu_backward_signature(), &args, context);
}

std::size_t gemm_swiglu_backward_workspace_bytes(const GemmSwigluBackwardArgs& args,
                                                 const DeviceProperties& device,
                                                 bool batch_invariant) {
  return workspace_bytes(gemm_swiglu_backward_signature(), &args, device, batch_invariant);
}

}  // namespace tandem
