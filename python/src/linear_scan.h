// linear_scan for torch's dispatcher.
#pragma once

#include <cstdint>
#include <optional>
#include <tuple>

#include "call.h"
#include "gated_scan.h"

namespace tandem::extension {

constexpr const char* kLinearScanForwardSchema =
    "linear_scan_forward(Tensor u, Tensor weight, Tensor? decay, Tensor? log_decay, Tensor? gate, "
    "Tensor? initial_state, bool output_final_state, Tensor? cu_seqlens) -> (Tensor, Tensor?)";
constexpr const char* kLinearScanBackwardSchema =
    "linear_scan_backward(Tensor u, Tensor weight, Tensor? decay, Tensor? log_decay, Tensor? gate, "
    "Tensor? initial_state, Tensor? cu_seqlens, Tensor d_out, Tensor? d_final_state, "
    "bool wants_du, bool wants_d_weight, bool wants_d_decay, bool wants_d_gate, "
    "bool wants_d_initial_state) -> (Tensor?, Tensor?, Tensor?, Tensor?, Tensor?)";

inline std::tuple<Tensor, OptionalTensor> linear_scan_forward(const Tensor& u, const Tensor& weight,
                                                              const OptionalTensor& decay,
                                                              const OptionalTensor& log_decay,
                                                              const OptionalTensor& gate,
                                                              const OptionalTensor& initial_state,
                                                              bool output_final_state,
                                                              const OptionalTensor& cu_seqlens) {
  Call call("linear_scan_forward");
  LinearScanForwardArgs args;
  args.u = call.activations("u", u);
  args.weight = call.activations("weight", weight);
  ScanTensors{decay, log_decay, gate, initial_state, cu_seqlens}.to_args(call, args);

  // The library refuses u or weight of other ranks; there is nothing to allocate for them.
  const bool ranks = u.dim() == 3 && weight.dim() == 2;
  const std::int64_t D = ranks ? weight.size(0) : 0;
  const Tensor out = torch::stable::new_empty(u, {ranks ? u.size(0) : 0, ranks ? u.size(1) : 0, D});
  args.out = call.view("out", Call::kActivations, out);
  OptionalTensor final_state;
  if (output_final_state && ranks) {
    final_state = torch::stable::new_empty(u, {sequences(u, cu_seqlens), D}, ScalarType::Float);
    args.final_state = call.view("final_state", "fp32", *final_state);
  }
  tandem::linear_scan_forward(
      args, call.context(args.u.device, u, args, linear_scan_forward_workspace_bytes));
  return {out, final_state};
}

using LinearScanGradients =
    std::tuple<OptionalTensor, OptionalTensor, OptionalTensor, OptionalTensor, OptionalTensor>;

inline LinearScanGradients linear_scan_backward(
    const Tensor& u, const Tensor& weight, const OptionalTensor& decay,
    const OptionalTensor& log_decay, const OptionalTensor& gate,
    const OptionalTensor& initial_state, const OptionalTensor& cu_seqlens, const Tensor& d_out,
    const OptionalTensor& d_final_state, bool wants_du, bool wants_d_weight, bool wants_d_decay,
    bool wants_d_gate, bool wants_d_initial_state) {
  Call call("linear_scan_backward");
  LinearScanBackwardArgs args;
  args.u = call.activations("u", u);
  args.weight = call.activations("weight", weight);
  ScanTensors{decay, log_decay, gate, initial_state, cu_seqlens}.to_args(call, args);
  args.d_out = call.activations("d_out", d_out);
  args.d_final_state = call.state("d_final_state", d_final_state);
  const bool logs = log_decay.has_value();
  LinearScanGradients gradients = {
      call.gradient(wants_du, "du", u, args.du),
      call.gradient(wants_d_weight, "d_weight", weight, args.d_weight),
      call.gradient(wants_d_decay, logs ? "d_log_decay" : "d_decay", logs ? log_decay : decay,
                    logs ? args.d_log_decay : args.d_decay),
      call.gradient(wants_d_gate, "d_gate", gate, args.d_gate),
      call.gradient(wants_d_initial_state, "d_initial_state", initial_state, args.d_initial_state)};
  tandem::linear_scan_backward(
      args, call.context(args.u.device, u, args, linear_scan_backward_workspace_bytes));
  return gradients;
}

}  // namespace tandem::extension
