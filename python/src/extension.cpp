// Tandem's ops for torch's dispatcher. This folder alone sees torch, and of torch only its stable
// ABI: one build loads in torch 2.10 and every later one, with or without CUDA.
#include <cstdint>
#include <optional>
#include <string>
#include <tuple>

#include "call.h"
#include "gated_scan.h"
#include "linear_scan.h"

namespace tandem::extension {
namespace {

using torch::stable::new_empty;

/// Allocates a span's state and total log-decay, for keys [B,T,HQ,K] and values [B,T,H,V].
std::tuple<Tensor, Tensor> span_results(const Tensor& keys, const Tensor& values,
                                        const OptionalTensor& cu_seqlens) {
  // The library refuses other ranks; there is nothing to allocate for them.
  const bool ranks = keys.dim() == 4 && values.dim() == 4;
  const std::int64_t N = ranks ? sequences(keys, cu_seqlens) : 0, H = ranks ? values.size(2) : 0;
  const std::int64_t K = ranks ? keys.size(3) : 0, V = ranks ? values.size(3) : 0;
  return {new_empty(values, {N, H, K, V}, ScalarType::Float),
          new_empty(values, {N, H}, ScalarType::Float)};
}

std::tuple<Tensor, OptionalTensor> gla_forward(const Tensor& q, const Tensor& k, const Tensor& v,
                                               const OptionalTensor& log_decay,
                                               std::optional<double> scale,
                                               const OptionalTensor& initial_state,
                                               bool output_final_state,
                                               const OptionalTensor& cu_seqlens) {
  Call call("gla_forward");
  GlaForwardArgs args;
  args.q = call.activations("q", q);
  args.k = call.activations("k", k);
  args.v = call.activations("v", v);
  args.log_decay = call.optional_view("log_decay", "fp32", log_decay);
  args.scale = scale;
  args.initial_state = call.state("initial_state", initial_state);
  args.cu_seqlens = call.cu_seqlens(cu_seqlens);

  const Tensor o = new_empty(v, v.sizes());
  args.o = call.view("o", Call::kActivations, o);
  OptionalTensor final_state;
  // The library refuses q or v of other ranks; there is no state to allocate for them.
  if (output_final_state && q.dim() == 4 && v.dim() == 4) {
    final_state = new_empty(v, {sequences(q, cu_seqlens), v.size(2), q.size(3), v.size(3)},
                            ScalarType::Float);
    args.final_state = call.view("final_state", "fp32", *final_state);
  }
  tandem::gla_forward(args, call.context(args.q.device, q, args, gla_forward_workspace_bytes));
  return {o, final_state};
}

std::tuple<Tensor, Tensor> gla_state_forward(const Tensor& k, const Tensor& v,
                                             const OptionalTensor& log_decay,
                                             const OptionalTensor& cu_seqlens) {
  Call call("gla_state_forward");
  GlaStateForwardArgs args;
  args.k = call.activations("k", k);
  args.v = call.activations("v", v);
  args.log_decay = call.optional_view("log_decay", "fp32", log_decay);
  args.cu_seqlens = call.cu_seqlens(cu_seqlens);

  const auto [state, total] = span_results(k, v, cu_seqlens);
  args.state = call.view("state", "fp32", state);
  args.total_log_decay = call.view("total_log_decay", "fp32", total);
  tandem::gla_state_forward(
      args, call.context(args.k.device, k, args, gla_state_forward_workspace_bytes));
  return {state, total};
}

std::tuple<Tensor, Tensor> gla_state_backward(const Tensor& q, const Tensor& d_o,
                                              const OptionalTensor& log_decay,
                                              std::optional<double> scale,
                                              const OptionalTensor& cu_seqlens) {
  Call call("gla_state_backward");
  GlaStateBackwardArgs args;
  args.q = call.activations("q", q);
  args.d_o = call.activations("d_o", d_o);
  args.log_decay = call.optional_view("log_decay", "fp32", log_decay);
  args.scale = scale;
  args.cu_seqlens = call.cu_seqlens(cu_seqlens);

  const auto [d_state, total] = span_results(q, d_o, cu_seqlens);
  args.d_state = call.view("d_state", "fp32", d_state);
  args.total_log_decay = call.view("total_log_decay", "fp32", total);
  tandem::gla_state_backward(
      args, call.context(args.q.device, q, args, gla_state_backward_workspace_bytes));
  return {d_state, total};
}

Tensor gla_step(const Tensor& q, const Tensor& k, const Tensor& v, const OptionalTensor& log_decay,
                std::optional<double> scale, const Tensor& state) {
  Call call("gla_step");
  GlaStepArgs args;
  args.q = call.activations("q", q);
  args.k = call.activations("k", k);
  args.v = call.activations("v", v);
  args.log_decay = call.optional_view("log_decay", "fp32", log_decay);
  args.scale = scale;
  args.state = call.view("state", "fp32 or bf16", state);
  const Tensor o = new_empty(v, v.sizes());
  args.o = call.view("o", Call::kActivations, o);
  tandem::gla_step(args, call.context(args.q.device));
  return o;
}

using GlaGradients =
    std::tuple<OptionalTensor, OptionalTensor, OptionalTensor, OptionalTensor, OptionalTensor>;

GlaGradients gla_backward(const Tensor& q, const Tensor& k, const Tensor& v,
                          const OptionalTensor& log_decay, std::optional<double> scale,
                          const OptionalTensor& initial_state, const OptionalTensor& cu_seqlens,
                          const Tensor& d_o, const OptionalTensor& d_final_state, bool wants_dq,
                          bool wants_dk, bool wants_dv, bool wants_d_log_decay,
                          bool wants_d_initial_state) {
  Call call("gla_backward");
  GlaBackwardArgs args;
  args.q = call.activations("q", q);
  args.k = call.activations("k", k);
  args.v = call.activations("v", v);
  args.log_decay = call.optional_view("log_decay", "fp32", log_decay);
  args.scale = scale;
  args.initial_state = call.state("initial_state", initial_state);
  args.cu_seqlens = call.cu_seqlens(cu_seqlens);
  args.d_o = call.activations("d_o", d_o);
  args.d_final_state = call.state("d_final_state", d_final_state);

  GlaGradients gradients = {
      call.gradient(wants_dq, "dq", q, args.dq), call.gradient(wants_dk, "dk", k, args.dk),
      call.gradient(wants_dv, "dv", v, args.dv),
      call.gradient(wants_d_log_decay, "d_log_decay", log_decay, args.d_log_decay),
      call.gradient(wants_d_initial_state, "d_initial_state", initial_state, args.d_initial_state)};
  tandem::gla_backward(args, call.context(args.q.device, q, args, gla_backward_workspace_bytes));
  return gradients;
}

template <class Library>
void add_functions(Library& library) {
  library.impl("gla_forward", boxed<gla_forward>);
  library.impl("gla_state_forward", boxed<gla_state_forward>);
  library.impl("gla_backward", boxed<gla_backward>);
  library.impl("gla_state_backward", boxed<gla_state_backward>);
  library.impl("gla_step", boxed<gla_step>);
  library.impl("gated_scan_forward", boxed<gated_scan_forward>);
  library.impl("gated_scan_backward", boxed<gated_scan_backward>);
  library.impl("linear_scan_forward", boxed<linear_scan_forward>);
  library.impl("linear_scan_backward", boxed<linear_scan_backward>);
}

}  // namespace
}  // namespace tandem::extension

STABLE_TORCH_LIBRARY(tandem, m) {
  m.def(
      "gla_forward(Tensor q, Tensor k, Tensor v, Tensor? log_decay, float? scale, "
      "Tensor? initial_state, bool output_final_state, Tensor? cu_seqlens) -> (Tensor, Tensor?)");
  m.def(
      "gla_state_forward(Tensor k, Tensor v, Tensor? log_decay, Tensor? cu_seqlens) "
      "-> (Tensor, Tensor)");
  m.def(
      "gla_step(Tensor q, Tensor k, Tensor v, Tensor? log_decay, float? scale, Tensor(a!) state) "
      "-> Tensor");
  m.def(
      "gla_backward(Tensor q, Tensor k, Tensor v, Tensor? log_decay, float? scale, "
      "Tensor? initial_state, Tensor? cu_seqlens, Tensor d_o, Tensor? d_final_state, "
      "bool wants_dq, bool wants_dk, bool wants_dv, bool wants_d_log_decay, "
      "bool wants_d_initial_state) -> (Tensor?, Tensor?, Tensor?, Tensor?, Tensor?)");
  m.def(
      "gla_state_backward(Tensor q, Tensor d_o, Tensor? log_decay, float? scale, "
      "Tensor? cu_seqlens) -> (Tensor, Tensor)");
  m.def(tandem::extension::kGatedScanForwardSchema);
  m.def(tandem::extension::kGatedScanBackwardSchema);
  m.def(tandem::extension::kLinearScanForwardSchema);
  m.def(tandem::extension::kLinearScanBackwardSchema);
}

STABLE_TORCH_LIBRARY_IMPL(tandem, CPU, m) { tandem::extension::add_functions(m); }

STABLE_TORCH_LIBRARY_IMPL(tandem, CUDA, m) { tandem::extension::add_functions(m); }

/// Says why no CUDA device can be used, "" where one can. tandem/_extension.py calls it through
/// ctypes.
extern "C" __attribute__((visibility("default"))) const char* tandem_cuda_unavailable_reason() {
  static const std::string reason = tandem::cuda_unavailable_reason();
  return reason.c_str();
}
