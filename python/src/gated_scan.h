// gated_scan for torch's dispatcher.
#pragma once

#include <cstdint>
#include <optional>
#include <tuple>

#include "call.h"

namespace tandem::extension {

constexpr const char* kGatedScanForwardSchema =
    "gated_scan_forward(Tensor x, Tensor? decay, Tensor? log_decay, Tensor? gate, "
    "Tensor? initial_state, bool output_final_state, Tensor? cu_seqlens) -> (Tensor, Tensor?)";
constexpr const char* kGatedScanBackwardSchema =
    "gated_scan_backward(Tensor x, Tensor? decay, Tensor? log_decay, Tensor? gate, "
    "Tensor? initial_state, Tensor? cu_seqlens, Tensor d_out, Tensor? d_final_state, "
    "bool wants_dx, bool wants_d_decay, bool wants_d_gate, bool wants_d_initial_state) "
    "-> (Tensor?, Tensor?, Tensor?, Tensor?)";

/// Inputs that a scan is given beside x.
struct ScanTensors {
  const OptionalTensor& decay;
  const OptionalTensor& log_decay;
  const OptionalTensor& gate;
  const OptionalTensor& initial_state;
  const OptionalTensor& cu_seqlens;

  template <class Args>
  void to_args(Call& call, Args& args) const {
    args.decay = call.optional_activations("decay", decay);
    args.log_decay = call.optional_activations("log_decay", log_decay);
    args.gate = call.optional_activations("gate", gate);
    args.initial_state = call.state("initial_state", initial_state);
    args.cu_seqlens = call.cu_seqlens(cu_seqlens);
  }
};

inline std::tuple<Tensor, OptionalTensor> gated_scan_forward(
    const Tensor& x, const OptionalTensor& decay, const OptionalTensor& log_decay,
    const OptionalTensor& gate, const OptionalTensor& initial_state, bool output_final_state,
    const OptionalTensor& cu_seqlens) {
  Call call("gated_scan_forward");
  GatedScanForwardArgs args;
  args.x = call.activations("x", x);
  ScanTensors{decay, log_decay, gate, initial_state, cu_seqlens}.to_args(call, args);

  const Tensor out = torch::stable::new_empty(x, x.sizes());
  args.out = call.view("out", Call::kActivations, out);
  OptionalTensor final_state;
  // The library refuses x of other ranks; there is no state to allocate for them.
  if (output_final_state && x.dim() == 3) {
    final_state =
        torch::stable::new_empty(x, {sequences(x, cu_seqlens), x.size(2)}, ScalarType::Float);
    args.final_state = call.view("final_state", "fp32", *final_state);
  }
  tandem::gated_scan_forward(
      args, call.context(args.x.device, x, args, gated_scan_forward_workspace_bytes));
  return {out, final_state};
}

using ScanGradients = std::tuple<OptionalTensor, OptionalTensor, OptionalTensor, OptionalTensor>;

inline ScanGradients gated_scan_backward(
    const Tensor& x, const OptionalTensor& decay, const OptionalTensor& log_decay,
    const OptionalTensor& gate, const OptionalTensor& initial_state,
    const OptionalTensor& cu_seqlens, const Tensor& d_out, const OptionalTensor& d_final_state,
    bool wants_dx, bool wants_d_decay, bool wants_d_gate, bool wants_d_initial_state) {
  Call call("gated_scan_backward");
  GatedScanBackwardArgs args;
  args.x = call.activations("x", x);
  ScanTensors{decay, log_decay, gate, initial_state, cu_seqlens}.to_args(call, args);
  args.d_out = call.activations("d_out", d_out);
  args.d_final_state = call.state("d_final_state", d_final_state);
  const bool logs = log_decay.has_value();
  ScanGradients gradients = {
      call.gradient(wants_dx, "dx", x, args.dx),
      call.gradient(wants_d_decay, logs ? "d_log_decay" : "d_decay", logs ? log_decay : decay,
                    logs ? args.d_log_decay : args.d_decay),
      call.gradient(wants_d_gate, "d_gate", gate, args.d_gate),
      call.gradient(wants_d_initial_state, "d_initial_state", initial_state, args.d_initial_state)};
  tandem::gated_scan_backward(
      args, call.context(args.x.device, x, args, gated_scan_backward_workspace_bytes));
  return gradients;
}

}  // namespace tandem::extension
