// The chain behind a sequence mixing: a gate, the output projection, the residual and the next
// norm.
//
//   a = o                        without a gate      o [M,d_in], as are the gate and a
//   a = h(o) * f(gate)           h before the gate (GLA, RetNet), or no h
//   a = h(o * f(gate))           h behind the gate (Mamba-2)
//   sum = residual + a W^T + bias                    W [d,d_in], the residual [M,d]
//   out = norm(sum)              layer_norm, rms_norm or none
//
// f is none, silu or sigmoid. h, where it is asked for, is a weighted RMS norm of each group of
// neighbouring columns of a row: h(y) = y / sqrt(mean of y^2 over the group + group_eps) weight.
// With out, sum is what the next residual is.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>

#include "tandem/context.h"
#include "tandem/device.h"
#include "tandem/tensor.h"

namespace tandem {

/// f of the gate, on fp32 values. The numbers are those of torch's op.
enum class OutputGate : int {
  kNone = 0,     ///< the gate as it stands
  kSilu = 1,     ///< g / (1 + exp(-g))
  kSigmoid = 2,  ///< 1 / (1 + exp(-g))
};

/// The norm of the sum, over a row. The numbers are those of torch's op.
enum class OutputNorm : int {
  kNone = 0,
  kLayerNorm = 1,  ///< (sum - mean) / sqrt(variance + eps) norm_weight + norm_bias
  kRmsNorm = 2,    ///< sum / sqrt(mean of sum^2 + eps) norm_weight
};

/// M rows, d_in input width, d output width. o, gate, weight, residual, out, sum and gated share
/// one dtype: bf16 or fp16, on the CPU also fp32 and fp64. With fp64, which is plain and slow, what
/// is fp32 is fp64, arithmetic included. The innermost stride of every tensor is 1, the others are
/// free; bases and strides that are multiples of 16 bytes run at full speed, anything else runs
/// slower.
struct GatedOutputForwardArgs {
  TensorView o;                                    ///< [M,d_in]
  std::optional<TensorView> gate = std::nullopt;   ///< [M,d_in]
  OutputGate gate_activation = OutputGate::kNone;  ///< needs gate
  /// Of h: [group_width], the same for each group, or [d_in]. o's dtype or fp32.
  std::optional<TensorView> group_norm_weight = std::nullopt;
  /// Columns of a group, a divisor of d_in: with group_norm_weight, and only with it.
  std::optional<std::int64_t> group_width = std::nullopt;
  /// Of h, not negative: default 1e-6. With 0 a group of zeros gives NaN.
  std::optional<double> group_eps = std::nullopt;
  bool norm_behind_gate = false;                         ///< h(o * f(gate)); needs gate and h
  TensorView weight;                                     ///< W [d,d_in]
  std::optional<TensorView> bias = std::nullopt;         ///< [d], o's dtype or fp32
  std::optional<TensorView> residual = std::nullopt;     ///< [M,d]
  OutputNorm norm = OutputNorm::kNone;                   ///< of sum
  std::optional<TensorView> norm_weight = std::nullopt;  ///< [d], o's dtype or fp32; absent: 1
  /// [d], o's dtype or fp32, of layer_norm; absent: 0.
  std::optional<TensorView> norm_bias = std::nullopt;
  std::optional<double> eps = std::nullopt;  ///< of norm, not negative: default 1e-6
  TensorView out;                            ///< out [M,d]
  /// Out [M,d], only with a norm: without one it is out. The backward of a norm needs it.
  std::optional<TensorView> sum = std::nullopt;
  /// Out fp32 [M], only with layer_norm: the mean of sum. For the backward.
  std::optional<TensorView> mean = std::nullopt;
  /// Out fp32 [M], only with a norm: 1 / sqrt(variance or mean square of sum, + eps). For the
  /// backward; with rms_norm also what rms_norm_gemm takes as rstd.
  std::optional<TensorView> rstd = std::nullopt;
  /// Out [M,d_in], o's dtype, only with a gate or h: a. For the backward, which else makes it
  /// again.
  std::optional<TensorView> gated = std::nullopt;
  /// Out fp32 [M,d_in / group_width], only with h: 1 / sqrt(mean of y^2 + group_eps). For the
  /// backward.
  std::optional<TensorView> group_rstd = std::nullopt;
};

/// Runs on the device of the tensors, on `context.stream` there, without synchronising the host; on
/// the CPU it returns when done. a is rounded to o's dtype, products are accumulated in fp32 and
/// the sum is rounded once; the norm's statistics are those of the rounded sum. Bitwise repeatable
/// on one device and build. A row's NaN or inf reaches that row of the results alone. Throws
/// InvalidArgument (shape, dtype, device, stride, overlap, workspace), Unsupported (no variant can
/// run it: the text lists each and why) or CudaError, all before anything is written.
void gated_output_forward(const GatedOutputForwardArgs& args, const Context& context = {});

/// Bytes of workspace that gated_output_forward(args) needs on a device with these properties;
/// reads no tensor data. Throws as gated_output_forward does.
std::size_t gated_output_forward_workspace_bytes(const GatedOutputForwardArgs& args,
                                                 const DeviceProperties& device,
                                                 bool batch_invariant = false);

/// The gradient of a scalar loss through gated_output_forward; only what is asked for is computed.
///
///   m = (sum - mean) rstd, g = d_out norm_weight:
///   d_residual = d_sum + rstd (g - m mean of (g m) - mean of g)    layer_norm
///   d_residual = d_sum + rstd (g - m mean of (g m))                rms_norm
///   d_residual = d_sum + d_out                                     none
///   d_norm_weight = sum over rows of d_out m    d_norm_bias = sum over rows of d_out
///   d_weight = d_residual^T a    d_bias = sum over rows of d_residual    d_a = d_residual W
///   d_o, d_gate and d_group_norm_weight from d_a, o, gate and group_rstd
///
/// d_residual and d_a are rounded to o's dtype. Sums have one order. No output may overlap an input
/// or another output.
struct GatedOutputBackwardArgs {
  TensorView o;                                                ///< as in GatedOutputForwardArgs
  std::optional<TensorView> gate = std::nullopt;               ///< [M,d_in]
  OutputGate gate_activation = OutputGate::kNone;              ///< needs gate
  std::optional<TensorView> group_norm_weight = std::nullopt;  ///< [group_width] or [d_in]
  std::optional<std::int64_t> group_width = std::nullopt;      ///< with group_norm_weight
  bool norm_behind_gate = false;
  std::optional<TensorView> group_rstd = std::nullopt;  ///< as kept; with group_norm_weight
  std::optional<TensorView> gated = std::nullopt;       ///< [M,d_in], as kept; absent: made again
  TensorView weight;                                    ///< [d,d_in]
  std::optional<TensorView> bias = std::nullopt;        ///< [d]; only d_bias needs it
  OutputNorm norm = OutputNorm::kNone;
  std::optional<TensorView> norm_weight = std::nullopt;  ///< [d]; absent: 1
  std::optional<TensorView> norm_bias = std::nullopt;    ///< [d]; only d_norm_bias needs it
  std::optional<TensorView> sum = std::nullopt;          ///< [M,d]: with a norm
  std::optional<TensorView> mean = std::nullopt;         ///< fp32 [M]: with layer_norm
  std::optional<TensorView> rstd = std::nullopt;         ///< fp32 [M]: with a norm
  std::optional<TensorView> d_out = std::nullopt;        ///< [M,d], o's dtype; absent: 0
  /// [M,d], o's dtype, only with a norm: what reaches sum beside d_out; absent: 0. One of the two
  /// is needed.
  std::optional<TensorView> d_sum = std::nullopt;
  std::optional<TensorView> d_o = std::nullopt;         ///< out, as o
  std::optional<TensorView> d_gate = std::nullopt;      ///< out, as gate
  std::optional<TensorView> d_residual = std::nullopt;  ///< out [M,d], o's dtype
  std::optional<TensorView> d_weight = std::nullopt;    ///< out [d,d_in], o's dtype or fp32
  std::optional<TensorView> d_bias = std::nullopt;      ///< out [d], o's dtype or fp32
  /// Out, of group_norm_weight's shape, o's dtype or fp32.
  std::optional<TensorView> d_group_norm_weight = std::nullopt;
  std::optional<TensorView> d_norm_weight = std::nullopt;  ///< out [d], o's dtype or fp32
  std::optional<TensorView> d_norm_bias = std::nullopt;    ///< out [d], o's dtype or fp32
  /// Whether the gradients of weights and biases are added to what the given buffers hold, in fp32;
  /// d_o, d_gate and d_residual are not.
  bool accumulate = false;
};

/// Runs and throws as gated_output_forward does; bitwise repeatable, too. A row's NaN or inf
/// reaches d_o, d_gate and d_residual of that row alone.
void gated_output_backward(const GatedOutputBackwardArgs& args, const Context& context = {});

/// As gated_output_forward_workspace_bytes.
std::size_t gated_output_backward_workspace_bytes(const GatedOutputBackwardArgs& args,
                                                  const DeviceProperties& device,
                                                  bool batch_invariant = false);

}  // namespace tandem
