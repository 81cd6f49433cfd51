// Linear scan: gated_scan of a projection that is computed on the fly.
//
//   x_t = W u_t                             u_t [d], W [D,d]: x = u W^T
//   s_t = a_t s_{t-1} + x_t                 every channel on its own, s_0 = initial_state or 0
//   out_t = silu(gate_t) s_t                or s_t without a gate; silu(z) = z / (1 + exp(-z))
//
// Source of the scan: tandem/ops/gated_scan.h. docs/ops/linear_scan.md derives the gradients.
#pragma once

#include <cstddef>
#include <optional>

#include "tandem/context.h"
#include "tandem/device.h"
#include "tandem/tensor.h"

namespace tandem {

/// B batch, T time, d input width, D channels, N sequences. u, weight, gate and out share one
/// dtype: bf16 or fp16, on the CPU also fp32 and fp64 (as in GatedScanForwardArgs). The innermost
/// stride of every tensor is 1, the others are free; bases and strides that are multiples of 16
/// bytes run at full speed, anything else runs slower. States and cu_seqlens are contiguous.
struct LinearScanForwardArgs {
  TensorView u;                                            ///< [B,T,d]
  TensorView weight;                                       ///< [D,d]
  std::optional<TensorView> decay = std::nullopt;          ///< [B,T,D] as in GatedScanForwardArgs
  std::optional<TensorView> log_decay = std::nullopt;      ///< [B,T,D] as in GatedScanForwardArgs
  std::optional<TensorView> gate = std::nullopt;           ///< [B,T,D]
  std::optional<TensorView> initial_state = std::nullopt;  ///< fp32 [B,D]; [N,D] with cu_seqlens
  std::optional<TensorView> cu_seqlens = std::nullopt;     ///< as in GatedScanForwardArgs
  TensorView out;  ///< out [B,T,D]; 0 at tokens outside every sequence
  std::optional<TensorView> final_state =
      std::nullopt;  ///< out fp32, as initial_state, which it may share memory with

  // For linear_scan_backward, which is faster with them where it computes d_decay, d_log_decay or
  // d_gate. What they hold outside of every sequence is not defined.
  std::optional<TensorView> x = std::nullopt;  ///< out [B,T,D], u's dtype: x, rounded
  std::optional<TensorView> states =
      std::nullopt;  ///< out fp32 [B,ceil(T/128),D], contiguous: the states before the tokens 0,
                     ///< 128, 256, ... of each batch row; not defined where a sequence begins
};

/// Runs and throws as gated_scan_forward does. x is accumulated in fp32 and goes into the scan
/// as it is or, where that is faster on CUDA, with a precision of 2^-17 (bf16) or 2^-22 (fp16,
/// where an x beyond 65,519 is then infinite).
void linear_scan_forward(const LinearScanForwardArgs& args, const Context& context = {});

/// As gated_scan_forward_workspace_bytes.
std::size_t linear_scan_forward_workspace_bytes(const LinearScanForwardArgs& args,
                                                const DeviceProperties& device,
                                                bool batch_invariant = false);

/// The gradient of a scalar loss through linear_scan_forward: with dx, d_decay, d_log_decay, d_gate
/// and d_initial_state of GatedScanBackwardArgs, only what is asked for of these and
///
///   du_t = W^T dx_t        d_weight = sum over the tokens of all sequences of dx_t u_t^T
///
/// du at tokens outside every sequence is 0. Sums have one order. No output may overlap an input or
/// another output.
struct LinearScanBackwardArgs {
  TensorView u;                                              ///< as in LinearScanForwardArgs
  TensorView weight;                                         ///< as in LinearScanForwardArgs
  std::optional<TensorView> decay = std::nullopt;            ///< as in LinearScanForwardArgs
  std::optional<TensorView> log_decay = std::nullopt;        ///< as in LinearScanForwardArgs
  std::optional<TensorView> gate = std::nullopt;             ///< as in LinearScanForwardArgs
  std::optional<TensorView> initial_state = std::nullopt;    ///< as in LinearScanForwardArgs
  std::optional<TensorView> cu_seqlens = std::nullopt;       ///< as in LinearScanForwardArgs
  std::optional<TensorView> x = std::nullopt;                ///< kept by the forward, or none
  std::optional<TensorView> states = std::nullopt;           ///< kept by the forward, or none
  TensorView d_out;                                          ///< [B,T,D], u's dtype
  std::optional<TensorView> d_final_state = std::nullopt;    ///< fp32 [B,D] or [N,D]
  std::optional<TensorView> du = std::nullopt;               ///< out, as u
  std::optional<TensorView> d_weight = std::nullopt;         ///< out, as weight
  std::optional<TensorView> d_decay = std::nullopt;          ///< out, as decay, which it needs
  std::optional<TensorView> d_log_decay = std::nullopt;      ///< out, as log_decay, which it needs
  std::optional<TensorView> d_gate = std::nullopt;           ///< out, as gate, which it needs
  std::optional<TensorView> d_initial_state = std::nullopt;  ///< out fp32, as d_final_state
};

/// Runs and throws as linear_scan_forward does; bitwise repeatable, too.
void linear_scan_backward(const LinearScanBackwardArgs& args, const Context& context = {});

/// As gated_scan_forward_workspace_bytes.
std::size_t linear_scan_backward_workspace_bytes(const LinearScanBackwardArgs& args,
                                                 const DeviceProperties& device,
                                                 bool batch_invariant = false);

}  // namespace tandem
