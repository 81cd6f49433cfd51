// Gated scan: an element-wise linear recurrence over time with a gated output, the core of HGRN,
// of gated impulse linear recurrences and of other gated linear RNNs.
//
//   s_t = a_t s_{t-1} + x_t               s_0 = initial_state or 0
//   out_t = silu(gate_t) s_t              or s_t without a gate; silu(z) = z / (1 + exp(-z))
//
// every channel on its own. The recurrence is a scan with the associative operation
// (A, X) then (A', X') = (A' A, A' X + X'), which makes it parallel in time: Blelloch, "Prefix Sums
// and Their Applications", 1990; Martin and Cundy, "Parallelizing Linear Recurrent Neural Nets Over
// Sequence Length", 2018. docs/ops/gated_scan.md derives all of it.
#pragma once

#include <cstddef>
#include <optional>

#include "tandem/context.h"
#include "tandem/device.h"
#include "tandem/tensor.h"

namespace tandem {

/// B batch, T time, D channels, N sequences. x, gate and out share one dtype: bf16, fp16 or fp32,
/// on the CPU also fp64. With fp64, which is plain and slow, all is fp64, decays, states and
/// arithmetic included. The innermost stride of every [B,T,D] tensor is 1, the others are free;
/// bases and strides that are multiples of 16 bytes run at full speed, anything else runs slower.
/// States and cu_seqlens are contiguous.
struct GatedScanForwardArgs {
  TensorView x;  ///< [B,T,D]
  /// a_t [B,T,D], x's dtype or fp32. Exactly one of decay and log_decay must be given. Meant to lie
  /// in (0,1); any value is computed with. 0 forgets everything before the token, exactly, whatever
  /// it was.
  std::optional<TensorView> decay = std::nullopt;
  /// The natural log of a_t, instead of decay. -inf, and anything whose exp is below 2^-126 (about
  /// -87.3; in fp64 whatever has exp 0), forgets as a decay of 0 does; positive values grow the
  /// state.
  std::optional<TensorView> log_decay = std::nullopt;
  std::optional<TensorView> gate = std::nullopt;           ///< [B,T,D]
  std::optional<TensorView> initial_state = std::nullopt;  ///< fp32 [B,D]; [N,D] with cu_seqlens
  /// int32 [N+1] on the tensors' device, B = 1: sequence n is tokens [cu_seqlens[n],
  /// cu_seqlens[n+1]). Empty sequences are allowed. On a GPU the values are not checked but clamped
  /// into [0,T].
  std::optional<TensorView> cu_seqlens = std::nullopt;
  TensorView out;  ///< out [B,T,D]; 0 at tokens outside every sequence
  std::optional<TensorView> final_state =
      std::nullopt;  ///< out fp32, as initial_state, which it may share memory with

  // For gated_scan_backward, which is faster with them where it computes d_decay, d_log_decay or
  // d_gate.
  std::optional<TensorView> states =
      std::nullopt;  ///< out fp32 [B,ceil(T/128),D], contiguous: the states before the tokens 0,
                     ///< 128, 256, ... of each batch row; not defined where a sequence begins, and
                     ///< outside of all
};

/// Runs on the device of the tensors, on `context.stream` there, without synchronising the host; on
/// the CPU it returns when done. Computes in fp32, of fp64 in fp64. Bitwise repeatable on one
/// device and build. Throws InvalidArgument (shape, dtype, device, stride, overlap, workspace; on
/// the CPU also cu_seqlens values), Unsupported (no variant can run it: the text lists each and
/// why) or CudaError, all before anything is written.
void gated_scan_forward(const GatedScanForwardArgs& args, const Context& context = {});

/// Bytes of workspace that gated_scan_forward(args) needs on a device with these properties, with
/// such a Context::batch_invariant; reads no tensor data. Throws as gated_scan_forward does.
std::size_t gated_scan_forward_workspace_bytes(const GatedScanForwardArgs& args,
                                               const DeviceProperties& device,
                                               bool batch_invariant = false);

/// The gradient of a scalar loss through gated_scan_forward. The inputs are those of the forward
/// call; d_out and d_final_state are the loss's gradients by its outputs. The states are computed
/// again, from those that the forward kept or from the first token on. With ds_t the gradient by
/// s_t, only what is asked for of
///
///   ds_t = silu(gate_t) d_out_t + a_{t+1} ds_{t+1}     a_{T+1} ds_{T+1} = d_final_state or 0
///   dx_t = ds_t        d_gate_t = silu'(gate_t) s_t d_out_t        d_initial_state = a_1 ds_1
///   d_decay_t = s_{t-1} ds_t        d_log_decay_t = a_t s_{t-1} ds_t, 0 where a_t = 0
///
/// Gradients at tokens outside every sequence are 0; an empty sequence has d_initial_state =
/// d_final_state. No output may overlap an input or another output.
struct GatedScanBackwardArgs {
  TensorView x;                                              ///< as in GatedScanForwardArgs
  std::optional<TensorView> decay = std::nullopt;            ///< as in GatedScanForwardArgs
  std::optional<TensorView> log_decay = std::nullopt;        ///< as in GatedScanForwardArgs
  std::optional<TensorView> gate = std::nullopt;             ///< as in GatedScanForwardArgs
  std::optional<TensorView> initial_state = std::nullopt;    ///< as in GatedScanForwardArgs
  std::optional<TensorView> cu_seqlens = std::nullopt;       ///< as in GatedScanForwardArgs
  std::optional<TensorView> states = std::nullopt;           ///< kept by the forward, or none
  TensorView d_out;                                          ///< [B,T,D], x's dtype
  std::optional<TensorView> d_final_state = std::nullopt;    ///< fp32 [B,D] or [N,D]
  std::optional<TensorView> dx = std::nullopt;               ///< out, as x
  std::optional<TensorView> d_decay = std::nullopt;          ///< out, as decay, which it needs
  std::optional<TensorView> d_log_decay = std::nullopt;      ///< out, as log_decay, which it needs
  std::optional<TensorView> d_gate = std::nullopt;           ///< out, as gate, which it needs
  std::optional<TensorView> d_initial_state = std::nullopt;  ///< out fp32, as d_final_state
};

/// Runs and throws as gated_scan_forward does; bitwise repeatable, too.
void gated_scan_backward(const GatedScanBackwardArgs& args, const Context& context = {});

/// Bytes of workspace that gated_scan_backward(args) needs; as gated_scan_forward_workspace_bytes.
std::size_t gated_scan_backward_workspace_bytes(const GatedScanBackwardArgs& args,
                                                const DeviceProperties& device,
                                                bool batch_invariant = false);

/// Tokens of a chunk of gated_scan_decay, gated_scan_carry and its backward.
constexpr int kGatedScanChunk = 64;

/// What decays make of the state that a sequence begins with: their products over time.
///
///   before_c = a_1 a_2 ... a_{64 c}        of chunk c, tokens [64 c, 64 (c + 1)); before_0 = 1
///   total    = a_1 a_2 ... a_T             1 without tokens
///
/// A product with a decay of 0 is 0, whatever the decays before it are; what is below 2^-126 (of
/// fp64, the smallest normal number) may be. No output may overlap an input or another output.
struct GatedScanDecayArgs {
  TensorView decay;     ///< [B,T,D], bf16, fp16 or fp32, on the CPU also fp64; rows as x's
  bool is_log = false;  ///< whether `decay` holds the natural logs
  TensorView before;    ///< out fp32 [B,ceil(T/64),D], contiguous
  TensorView total;     ///< out fp32 [B,D], contiguous
};

/// Runs and throws as gated_scan_forward does; reads the decays once, needs no workspace.
void gated_scan_decay(const GatedScanDecayArgs& args, const Context& context = {});

/// Adds to outputs of gated_scan_forward, in place, what a state before their first token gives, if
/// they were computed from a state of 0 there:
///
///   out_t = out_t + silu(gate_t) (a_1 a_2 ... a_t) carry
///
/// Where what is left of the carry is 0 in fp32, or below 2^-126 before a chunk, out keeps its
/// bits: of the chunks behind nothing else is read. A decay of 0 ends a carry of inf or NaN, too.
/// out is rounded once more, to its dtype.
struct GatedScanCarryArgs {
  TensorView out;                                      ///< in and out [B,T,D], as in the forward
  std::optional<TensorView> decay = std::nullopt;      ///< as in GatedScanForwardArgs
  std::optional<TensorView> log_decay = std::nullopt;  ///< as in GatedScanForwardArgs
  std::optional<TensorView> gate = std::nullopt;       ///< as in GatedScanForwardArgs
  TensorView before;                                   ///< of gated_scan_decay
  TensorView carry;                                    ///< fp32 [B,D], contiguous
};

/// Runs and throws as gated_scan_forward does; needs no workspace.
void gated_scan_carry(const GatedScanCarryArgs& args, const Context& context = {});

/// What outputs add to the gradient by the state before their first token, chunk by chunk:
///
///   sums_c  = sum over chunk c of (a_1 a_2 ... a_t) silu(gate_t) d_out_t
///   d_carry = sums_0 + sums_1 + ...
///
/// Where the product of the decays is 0 in fp32, or below 2^-126 before a chunk, tokens add 0,
/// whatever d_out and gate are: of the chunks behind nothing else is read. No output may overlap an
/// input or another output.
struct GatedScanCarryBackwardArgs {
  TensorView d_out;                                    ///< [B,T,D], as out in the forward
  std::optional<TensorView> decay = std::nullopt;      ///< as in GatedScanForwardArgs
  std::optional<TensorView> log_decay = std::nullopt;  ///< as in GatedScanForwardArgs
  std::optional<TensorView> gate = std::nullopt;       ///< as in GatedScanForwardArgs
  TensorView before;                                   ///< of gated_scan_decay
  TensorView sums;                                     ///< out, as before
  TensorView d_carry;                                  ///< out fp32 [B,D], contiguous
};

/// Runs and throws as gated_scan_forward does; bitwise repeatable, too; needs no workspace.
void gated_scan_carry_backward(const GatedScanCarryBackwardArgs& args, const Context& context = {});

}  // namespace tandem
