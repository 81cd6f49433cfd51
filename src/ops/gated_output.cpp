// gated_output: its tables, and arguments -> checked problem. Host only.
#include "ops/gated_output.h"

#include <array>
#include <cmath>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "ops/call.h"
#include "ops/views.h"

namespace tandem {
namespace {

using Forward = GatedOutputForwardArgs;
using Backward = GatedOutputBackwardArgs;

constexpr double kDefaultEps = 1e-6;
constexpr std::array kNorms = {"none", "layer_norm", "rms_norm"};
constexpr const char* kAnyNorm = "layer_norm and rms_norm";

std::vector<Parameter> forward_table() {
  return {input<&Forward::o>("o", "M,d_in", Element::kMatrix),
          input<&Forward::gate>("gate", "M,d_in"),
          choice<&Forward::gate_activation>("gate_activation"),
          input<&Forward::group_norm_weight>("group_norm_weight", "W", Element::kSameOrFp32),
          whole_number<&Forward::group_width>("group_width"),
          number<&Forward::group_eps>("group_eps"),
          choice_of_two<&Forward::norm_behind_gate>("norm_behind_gate"),
          input<&Forward::weight>("weight", "d,d_in"),
          input<&Forward::bias>("bias", "d", Element::kSameOrFp32),
          input<&Forward::residual>("residual", "M,d"),
          choice<&Forward::norm>("norm"),
          input<&Forward::norm_weight>("norm_weight", "d", Element::kSameOrFp32),
          input<&Forward::norm_bias>("norm_bias", "d", Element::kSameOrFp32),
          number<&Forward::eps>("eps"),
          output<&Forward::out>("out", "M,d"),
          output<&Forward::sum>("sum", "M,d"),
          output<&Forward::mean>("mean", "M", Element::kFp32),
          output<&Forward::rstd>("rstd", "M", Element::kFp32),
          output<&Forward::gated>("gated", "M,d_in"),
          output<&Forward::group_rstd>("group_rstd", "M,d_in/group_width", Element::kFp32)};
}

std::vector<Parameter> backward_table() {
  return {input<&Backward::o>("o", "M,d_in", Element::kMatrix),
          input<&Backward::gate>("gate", "M,d_in"),
          choice<&Backward::gate_activation>("gate_activation"),
          input<&Backward::group_norm_weight>("group_norm_weight", "W", Element::kSameOrFp32),
          whole_number<&Backward::group_width>("group_width"),
          choice_of_two<&Backward::norm_behind_gate>("norm_behind_gate"),
          input<&Backward::group_rstd>("group_rstd", "M,d_in/group_width", Element::kFp32),
          input<&Backward::gated>("gated", "M,d_in"),
          input<&Backward::weight>("weight", "d,d_in"),
          input<&Backward::bias>("bias", "d", Element::kSameOrFp32),
          choice<&Backward::norm>("norm"),
          input<&Backward::norm_weight>("norm_weight", "d", Element::kSameOrFp32),
          input<&Backward::norm_bias>("norm_bias", "d", Element::kSameOrFp32),
          input<&Backward::sum>("sum", "M,d"),
          input<&Backward::mean>("mean", "M", Element::kFp32),
          input<&Backward::rstd>("rstd", "M", Element::kFp32),
          input<&Backward::d_out>("d_out", "M,d"),
          input<&Backward::d_sum>("d_sum", "M,d"),
          gradient<&Backward::d_o>("d_o", "o"),
          gradient<&Backward::d_gate>("d_gate", "gate"),
          gradient_of_another<&Backward::d_residual>("d_residual", "residual", "M,d"),
          gradient<&Backward::d_weight>("d_weight", "weight").also_fp32(),
          gradient<&Backward::d_bias>("d_bias", "bias").also_fp32(),
          gradient<&Backward::d_group_norm_weight>("d_group_norm_weight", "group_norm_weight")
              .also_fp32(),
          gradient<&Backward::d_norm_weight>("d_norm_weight", "norm_weight").also_fp32(),
          gradient<&Backward::d_norm_bias>("d_norm_bias", "norm_bias").also_fp32(),
          flag<&Backward::accumulate>("accumulate")};
}

/// What the tables do not say, of either call.
template <class Args>
class Check {
 public:
  Check(const Signature& signature, const Args& args) : op_(signature.name()), args_(args) {}

  [[noreturn]] void refuse(const std::string& text) const { tandem::refuse(op_, text); }

  void needs(const char* name, bool given, const char* other, bool other_given) const {
    if (given && !other_given) refuse(std::string(name) + " needs " + other);
  }

  /// Before the table's checks, which divide by group_width.
  void numbers() const {
    one_of("gate_activation", args_.gate_activation, OutputGate::kSigmoid,
           "0 (none), 1 (silu) or 2 (sigmoid)");
    one_of("norm", args_.norm, OutputNorm::kRmsNorm, "0 (none), 1 (layer_norm) or 2 (rms_norm)");
    needs("group_rstd", args_.group_rstd.has_value(), "group_width", args_.group_width.has_value());
    if (!args_.group_width || args_.o.shape.rank() != 2) return;
    const std::int64_t width = *args_.group_width, d_in = args_.o.shape[1];
    if (width < 1 || d_in % width != 0) {
      refuse("group_width must be a divisor of d_in = " + std::to_string(d_in) + ", got " +
             std::to_string(width));
    }
  }

  void eps(const char* name, const std::optional<double>& value) const {
    if (!value) return;
    if (!std::isfinite(*value)) {
      refuse(std::string(name) + " must be finite, got " + std::to_string(*value));
    }
    if (*value < 0) {
      refuse(std::string(name) + " must not be negative, got " + std::to_string(*value));
    }
  }

  void gate_and_group_norm() const {
    const bool gated = args_.gate.has_value(), normed = args_.group_norm_weight.has_value();
    needs("gate_activation", args_.gate_activation != OutputGate::kNone, "gate", gated);
    needs("group_norm_weight", normed, "group_width", args_.group_width.has_value());
    needs("group_width", args_.group_width.has_value(), "group_norm_weight", normed);
    needs("norm_behind_gate", args_.norm_behind_gate, "gate", gated);
    needs("norm_behind_gate", args_.norm_behind_gate, "group_norm_weight", normed);
    needs("gated", args_.gated.has_value(), "gate or group_norm_weight", gated || normed);
    if (!normed) return;
    const std::int64_t width = *args_.group_width, d_in = args_.o.shape[1];
    const Dims& shape = args_.group_norm_weight->shape;
    if (shape[0] == width || shape[0] == d_in) return;
    refuse("group_norm_weight must have shape [group_width] = [" + std::to_string(width) +
           "] or [d_in] = [" + std::to_string(d_in) + "], got " + to_string(shape));
  }

  void norm() const {
    of_a_norm("norm_weight", args_.norm_weight.has_value());
    of_layer_norm("norm_bias", args_.norm_bias.has_value());
    of_a_norm("sum", args_.sum.has_value());
    of_layer_norm("mean", args_.mean.has_value());
    of_a_norm("rstd", args_.rstd.has_value());
  }

  void of_a_norm(const char* name, bool given) const {
    only_of(name, given, args_.norm != OutputNorm::kNone, kAnyNorm);
  }
  void of_layer_norm(const char* name, bool given) const {
    only_of(name, given, args_.norm == OutputNorm::kLayerNorm, "layer_norm");
  }

 private:
  template <class Choice>
  void one_of(const char* name, Choice value, Choice last, const char* choices) const {
    if (value >= Choice{} && value <= last) return;
    refuse(std::string(name) + " must be " + choices + ", got " +
           std::to_string(static_cast<int>(value)));
  }

  /// Refuses what another norm than the call's has.
  void only_of(const char* name, bool given, bool fits, const char* norms) const {
    if (!given || fits) return;
    refuse(std::string(name) + " is of " + norms +
           ", got norm = " + kNorms[static_cast<std::size_t>(args_.norm)]);
  }

  const char* op_;
  const Args& args_;
};

WeightVector weight_vector(const std::optional<TensorView>& view) {
  return view ? WeightVector{view->data, view->dtype} : WeightVector{};
}

WeightVectorGradient gradient_vector(const std::optional<TensorView>& view) {
  return view ? WeightVectorGradient{view->data, view->dtype} : WeightVectorGradient{};
}

/// Sets what a forward and a backward problem have in common.
template <class Problem, class Args>
void set_inputs(Problem& problem, const Args& args) {
  problem.dtype = args.o.dtype;
  problem.device = args.o.device;
  problem.M = args.o.shape[0];
  problem.d_in = static_cast<int>(args.o.shape[1]);
  problem.d = static_cast<int>(args.weight.shape[0]);
  GatedRows& rows = problem.rows;
  rows.o = matrix_tensor(args.o);
  rows.gate = matrix_tensor(args.gate);
  rows.gate_activation = args.gate_activation;
  rows.group_width = static_cast<int>(args.group_width.value_or(0));
  rows.group_norm_weight = weight_vector(args.group_norm_weight);
  // why not where both are true: one group has each column's weight.
  rows.group_weight_repeats =
      args.group_norm_weight && args.group_norm_weight->shape[0] != args.o.shape[1];
  rows.norm_behind_gate = args.norm_behind_gate;
  problem.group_rstd = matrix_tensor(args.group_rstd);
  problem.gated = matrix_tensor(args.gated);
  problem.weight = matrix_tensor(args.weight);
  problem.norm = args.norm;
  problem.norm_weight = weight_vector(args.norm_weight);
  problem.sum = matrix_tensor(args.sum);
  problem.mean = state_data(args.mean);
  problem.rstd = state_data(args.rstd);
}

}  // namespace

const Signature& gated_output_forward_signature() {
  static const Signature signature =
      make_signature<Forward>("gated_output_forward", forward_table(),
                              {cpu::gated_output_forward, TANDEM_CUDA_ENTRY(gated_output_forward),
                               TANDEM_CUDA_ENTRY(gated_output_forward_workspace_bytes)});
  return signature;
}

const Signature& gated_output_backward_signature() {
  static const Signature signature = make_signature<Backward>(
      "gated_output_backward", backward_table(),
      {cpu::gated_output_backward, TANDEM_CUDA_ENTRY(gated_output_backward),
       TANDEM_CUDA_ENTRY(gated_output_backward_workspace_bytes)});
  return signature;
}

GatedOutputForwardProblem make_problem(const GatedOutputForwardArgs& args) {
  const Signature& signature = gated_output_forward_signature();
  const Check check(signature, args);
  check.numbers();
  check.eps("group_eps", args.group_eps);
  check.eps("eps", args.eps);
  signature.check(&args);
  check.gate_and_group_norm();
  check.needs("group_eps", args.group_eps.has_value(), "group_norm_weight",
              args.group_norm_weight.has_value());
  check.norm();
  check.of_a_norm("eps", args.eps.has_value());
  GatedOutputForwardProblem problem;
  set_inputs(problem, args);
  problem.group_eps = args.group_eps.value_or(kDefaultEps);
  problem.bias = weight_vector(args.bias);
  problem.residual = matrix_tensor(args.residual);
  problem.norm_bias = weight_vector(args.norm_bias);
  problem.eps = args.eps.value_or(kDefaultEps);
  problem.out = matrix_tensor(args.out);
  return problem;
}

GatedOutputBackwardProblem make_problem(const GatedOutputBackwardArgs& args) {
  const Signature& signature = gated_output_backward_signature();
  const Check check(signature, args);
  check.numbers();
  signature.check(&args);
  check.gate_and_group_norm();
  check.needs("group_norm_weight", args.group_norm_weight.has_value(), "group_rstd",
              args.group_rstd.has_value());
  check.norm();
  check.of_a_norm("d_sum", args.d_sum.has_value());
  const bool normalizes = args.norm != OutputNorm::kNone;
  check.needs("norm", normalizes, "sum", args.sum.has_value());
  check.needs("norm", normalizes, "rstd", args.rstd.has_value());
  check.needs("norm", args.norm == OutputNorm::kLayerNorm, "mean", args.mean.has_value());
  if (!args.d_out && !args.d_sum) check.refuse("d_out or d_sum must be given, got neither");
  GatedOutputBackwardProblem problem;
  set_inputs(problem, args);
  problem.d_out = matrix_tensor(args.d_out);
  problem.d_sum = matrix_tensor(args.d_sum);
  problem.d_o = matrix_tensor(args.d_o);
  problem.d_gate = matrix_tensor(args.d_gate);
  problem.d_residual = matrix_tensor(args.d_residual);
  if (args.d_weight) problem.d_weight_dtype = args.d_weight->dtype;
  problem.d_weight = matrix_tensor(args.d_weight);
  problem.d_bias = gradient_vector(args.d_bias);
  problem.d_group_norm_weight = gradient_vector(args.d_group_norm_weight);
  problem.d_norm_weight = gradient_vector(args.d_norm_weight);
  problem.d_norm_bias = gradient_vector(args.d_norm_bias);
  problem.accumulate = args.accumulate;
  return problem;
}

void gated_output_forward(const GatedOutputForwardArgs& args, const Context& context) {
  run(gated_output_forward_signature(), &args, context);
}

std::size_t gated_output_forward_workspace_bytes(const GatedOutputForwardArgs& args,
                                                 const DeviceProperties& device,
                                                 bool batch_invariant) {
  return workspace_bytes(gated_output_forward_signature(), &args, device, batch_invariant);
}

void gated_output_backward(const GatedOutputBackwardArgs& args, const Context& context) {
  run(gated_output_backward_signature(), &args, context);
}

std::size_t gated_output_backward_workspace_bytes(const GatedOutputBackwardArgs& args,
                                                  const DeviceProperties& device,
                                                  bool batch_invariant) {
  return workspace_bytes(gated_output_backward_signature(), &args, device, batch_invariant);
}

}  // namespace tandem
