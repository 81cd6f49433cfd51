#include "ops/scan_check.h"

#include <string>

namespace tandem {
namespace {

TokenTensor tokens(const TensorView& view) { return {view.data, view.strides[0], view.strides[1]}; }

}  // namespace

void ScanInputs::add_to(Arguments& inputs) const {
  inputs.add("decay", decay);
  inputs.add("log_decay", log_decay);
  inputs.add("gate", gate);
  inputs.add("cu_seqlens", cu_seqlens);
}

void check_scan_dtype(const Argument& activation) {
  const DType dtype = activation.view.dtype;
  if (dtype != DType::kInt32) return;
  refuse(activation.op, std::string(activation.name) + " must have dtype bf16, fp16 or fp32, got " +
                            to_string(dtype));
}

ScanRecurrence check_scan(const char* op, const ScanInputs& inputs, const Dims& shape, DType dtype,
                          Device device) {
  ScanRecurrence scan;
  scan.dtype = dtype;
  scan.device = device;
  scan.B = scan.N = shape[0];
  scan.T = shape[1];
  scan.D = static_cast<int>(shape[2]);
  if (inputs.cu_seqlens) {
    const SequenceOffsets offsets =
        check_sequences({op, "cu_seqlens", *inputs.cu_seqlens}, scan.B, device);
    scan.N = offsets.N;
    scan.cu_seqlens = offsets.data;
  }
  if (inputs.decay.has_value() == inputs.log_decay.has_value()) {
    refuse(op, std::string("exactly one of decay and log_decay must be given, got ") +
                   (inputs.decay ? "both" : "neither"));
  }
  scan.log_decay = inputs.log_decay.has_value();
  const Argument decay{op, scan.log_decay ? "log_decay" : "decay",
                       scan.log_decay ? *inputs.log_decay : *inputs.decay};
  scan.decay_dtype = decay.view.dtype;
  if (scan.decay_dtype != dtype && scan.decay_dtype != DType::kFloat32) {
    refuse(op, std::string(decay.name) + " must have dtype " + to_string(dtype) +
                   (dtype == DType::kFloat32 ? "" : " or fp32") + ", got " +
                   to_string(scan.decay_dtype));
  }
  scan.decay = check_tokens(decay, scan, scan.decay_dtype);
  if (inputs.gate) scan.gate = check_tokens({op, "gate", *inputs.gate}, scan);
  scan.initial_state = check_state(op, "initial_state", inputs.initial_state, scan);
  return scan;
}

TokenTensor check_tokens(const Argument& argument, const ScanRecurrence& scan, DType dtype) {
  check_activation(argument, "[B,T,D]", {scan.B, scan.T, scan.D}, dtype, scan.device);
  return tokens(argument.view);
}

TokenTensor check_tokens(const Argument& argument, const ScanRecurrence& scan) {
  return check_tokens(argument, scan, scan.dtype);
}

float* check_state(const char* op, const char* name, const std::optional<TensorView>& state,
                   const ScanRecurrence& scan) {
  if (!state) return nullptr;
  check_contiguous_operand({op, name, *state}, scan.cu_seqlens ? "[N,D]" : "[B,D]",
                           {scan.N, scan.D}, DType::kFloat32, scan.device);
  return static_cast<float*>(state->data);
}

TokenTensor check_decay_gradient(const char* op, const std::optional<TensorView>& d_decay,
                                 const std::optional<TensorView>& d_log_decay,
                                 const ScanRecurrence& scan) {
  if (d_decay && scan.log_decay) refuse(op, "d_decay needs decay");
  if (d_log_decay && !scan.log_decay) refuse(op, "d_log_decay needs log_decay");
  if (d_decay) return check_tokens({op, "d_decay", *d_decay}, scan, scan.decay_dtype);
  if (d_log_decay) return check_tokens({op, "d_log_decay", *d_log_decay}, scan, scan.decay_dtype);
  return {};
}

TokenTensor check_gate_gradient(const char* op, const std::optional<TensorView>& d_gate,
                                const std::optional<TensorView>& gate, const ScanRecurrence& scan) {
  if (!d_gate) return {};
  if (!gate) refuse(op, "d_gate needs gate");
  return check_tokens({op, "d_gate", *d_gate}, scan);
}

void check_scan_outputs(const char* op, const TensorView& out,
                        const std::optional<TensorView>& final_state,
                        const std::optional<TensorView>& initial_state, const Arguments& inputs) {
  Arguments all = inputs, outputs(op);
  const bool in_place = final_state && initial_state && final_state->data == initial_state->data;
  if (!in_place) all.add("initial_state", initial_state);
  outputs.add("out", out);
  outputs.add("final_state", final_state);
  check_outputs(outputs, all);
}

}  // namespace tandem
