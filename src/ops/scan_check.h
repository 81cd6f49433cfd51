// Checks that the scans (gated_scan, linear_scan) share; each throws InvalidArgument "[op] argument
// expected, got".
#pragma once

#include <optional>

#include "core/strided_tensor.h"
#include "ops/gated_scan.h"
#include "ops/operand_check.h"

namespace tandem {

/// What a scan is given beside x, forward and backward.
struct ScanInputs {
  const std::optional<TensorView>& decay;
  const std::optional<TensorView>& log_decay;
  const std::optional<TensorView>& gate;
  const std::optional<TensorView>& initial_state;
  const std::optional<TensorView>& cu_seqlens;

  template <class Args>
  static ScanInputs of(const Args& args) {
    return {args.decay, args.log_decay, args.gate, args.initial_state, args.cu_seqlens};
  }
  void add_to(Arguments& inputs) const;
};

/// Checks the dtype of a scan: bf16, fp16 or fp32.
void check_scan_dtype(const Argument& activation);

/// Checks the inputs against x's shape [B,T,D], dtype and device.
ScanRecurrence check_scan(const char* op, const ScanInputs& inputs, const Dims& shape, DType dtype,
                          Device device);

/// Checks a [B,T,D] tensor of the scan, of its activations' dtype or another.
TokenTensor check_tokens(const Argument& argument, const ScanRecurrence& scan, DType dtype);
TokenTensor check_tokens(const Argument& argument, const ScanRecurrence& scan);

/// Checks a state [B,D], or [N,D] with cu_seqlens; returns null when it is absent.
float* check_state(const char* op, const char* name, const std::optional<TensorView>& state,
                   const ScanRecurrence& scan);

/// Checks what ScanGradients holds of the arguments of a backward call.
template <class Args>
void check_scan_gradients(const char* op, const Args& args, const ScanRecurrence& scan,
                          ScanGradients& gradients);

/// Checks d_decay or d_log_decay, whichever fits the decay that was given.
TokenTensor check_decay_gradient(const char* op, const std::optional<TensorView>& d_decay,
                                 const std::optional<TensorView>& d_log_decay,
                                 const ScanRecurrence& scan);

/// Checks d_gate, which needs a gate.
TokenTensor check_gate_gradient(const char* op, const std::optional<TensorView>& d_gate,
                                const std::optional<TensorView>& gate, const ScanRecurrence& scan);

/// Checks out and final_state against each other and `inputs`, which are all but initial_state:
/// final_state may be that.
void check_scan_outputs(const char* op, const TensorView& out,
                        const std::optional<TensorView>& final_state,
                        const std::optional<TensorView>& initial_state, const Arguments& inputs);

template <class Args>
void check_scan_gradients(const char* op, const Args& args, const ScanRecurrence& scan,
                          ScanGradients& gradients) {
  gradients.d_out = check_tokens({op, "d_out", args.d_out}, scan);
  gradients.d_final_state = check_state(op, "d_final_state", args.d_final_state, scan);
  gradients.d_decay = check_decay_gradient(op, args.d_decay, args.d_log_decay, scan);
  gradients.d_gate = check_gate_gradient(op, args.d_gate, args.gate, scan);
  gradients.d_initial_state = check_state(op, "d_initial_state", args.d_initial_state, scan);
}

/// Lists the arguments of a backward call that every scan has, for check_outputs.
template <class Args>
void add_scan_gradients(const Args& args, Arguments& inputs, Arguments& outputs) {
  ScanInputs::of(args).add_to(inputs);
  inputs.add("initial_state", args.initial_state);
  inputs.add("d_out", args.d_out);
  inputs.add("d_final_state", args.d_final_state);
  outputs.add("d_decay", args.d_decay);
  outputs.add("d_log_decay", args.d_log_decay);
  outputs.add("d_gate", args.d_gate);
  outputs.add("d_initial_state", args.d_initial_state);
}

}  // namespace tandem
