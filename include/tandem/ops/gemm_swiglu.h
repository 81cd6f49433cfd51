// The gated half of a transformer's MLP: two matrix products of the same rows, one of which gates
// the other, with an RMS norm of the rows in front where it is asked for.
//
//   n = x                                     or  x / sqrt(mean of x^2 + eps) norm_weight
//   out = f(n Wg^T) * (n Wu^T)                n [M,d], Wg and Wu [F,d], element by element
//
// f is silu in SwiGLU (Llama, Qwen, Mistral), gelu in GEGLU, relu in ReGLU (Shazeer,
// arXiv:2002.05202).
#pragma once

#include <cstddef>
#include <optional>

#include "tandem/context.h"
#include "tandem/device.h"
#include "tandem/tensor.h"

namespace tandem {

/// f, on fp32 values that were not rounded before. The numbers are those of torch's op.
enum class GateActivation : int {
  kSilu = 0,      ///< z / (1 + exp(-z))
  kGelu = 1,      ///< z / 2 (1 + erf(z / sqrt 2))
  kGeluTanh = 2,  ///< z / 2 (1 + tanh(sqrt(2 / pi) (z + 0.044715 z^3)))
  kRelu = 3,      ///< max(z, 0)
};

/// M rows, d input width, F columns of the result. x, the weights and out share one dtype: bf16 or
/// fp16, on the CPU also fp32 and fp64. With fp64, which is plain and slow, what is fp32 is fp64,
/// arithmetic included. The innermost stride of every tensor is 1, the others are free; bases and
/// strides that are multiples of 16 bytes run at full speed, anything else runs slower. The two
/// weights may be rows of one matrix.
struct GemmSwigluForwardArgs {
  TensorView x;            ///< [M,d]
  TensorView gate_weight;  ///< Wg [F,d]
  TensorView up_weight;    ///< Wu [F,d]
  GateActivation activation = GateActivation::kSilu;
  /// [d], x's dtype or fp32: there is a norm.
  std::optional<TensorView> norm_weight = std::nullopt;
  /// Of the norm, not negative: default 1e-6. With 0 a row of zeros gives NaN.
  std::optional<double> eps = std::nullopt;
  /// fp32 [M]: 1 / sqrt(mean of x^2 + eps) of each row, where another op has computed it. It needs
  /// norm_weight; eps must not be given then.
  std::optional<TensorView> rstd = std::nullopt;
  TensorView out;  ///< out [M,F]
  /// Out [M,F], x's dtype, for the backward: f'(n Wg^T) * (n Wu^T), what d_out is multiplied by for
  /// the gate's products. Both slopes or neither.
  std::optional<TensorView> gate_slope = std::nullopt;
  /// Out [M,F], x's dtype, for the backward: f(n Wg^T).
  std::optional<TensorView> up_slope = std::nullopt;
  /// Out fp32 [M], for the backward: 1 / sqrt(mean of x^2 + eps). It needs norm_weight.
  std::optional<TensorView> kept_rstd = std::nullopt;
};

/// Runs on the device of the tensors, on `context.stream` there, without synchronising the host; on
/// the CPU it returns when done. n is rounded to x's dtype, products are accumulated in fp32 and
/// the result is rounded once. Bitwise repeatable on one device and build. A row's NaN or inf
/// reaches that row of the result alone. Throws InvalidArgument (shape, dtype, device, stride,
/// overlap, workspace), Unsupported (no variant can run it: the text lists each and why) or
/// CudaError, all before anything is written.
void gemm_swiglu_forward(const GemmSwigluForwardArgs& args, const Context& context = {});

/// Bytes of workspace that gemm_swiglu_forward(args) needs on a device with these properties; reads
/// no tensor data. Throws as gemm_swiglu_forward does.
std::size_t gemm_swiglu_forward_workspace_bytes(const GemmSwigluForwardArgs& args,
                                                const DeviceProperties& device,
                                                bool batch_invariant = false);

/// The gradient of a scalar loss through gemm_swiglu_forward; only what is asked for is computed.
/// The slopes say what the activation was.
///
///   dg = d_out gate_slope     du = d_out up_slope     dn = dg Wg + du Wu
///   d_gate_weight = dg^T n    d_up_weight = du^T n
///   with a norm, m = x rstd:
///   dx = addend + rstd (dn norm_weight - m mean of (dn norm_weight m))
///   d_norm_weight = sum over rows of dn m
///
/// dg and du are rounded to x's dtype, with a norm also n and dn. Sums have one order. No output
/// may overlap an input or another output.
struct GemmSwigluBackwardArgs {
  TensorView x;                                          ///< as in GemmSwigluForwardArgs
  TensorView gate_weight;                                ///< [F,d]
  TensorView up_weight;                                  ///< [F,d]
  std::optional<TensorView> norm_weight = std::nullopt;  ///< [d]; it needs rstd
  std::optional<TensorView> rstd = std::nullopt;  ///< fp32 [M], as the forward had or kept it
  TensorView gate_slope;                          ///< [M,F]
  TensorView up_slope;                            ///< [M,F]
  TensorView d_out;                               ///< [M,F], x's dtype
  std::optional<TensorView> dx = std::nullopt;    ///< out, as x
  std::optional<TensorView> d_gate_weight = std::nullopt;  ///< out [F,d], x's dtype or fp32
  std::optional<TensorView> d_up_weight = std::nullopt;    ///< out [F,d], x's dtype or fp32
  std::optional<TensorView> d_norm_weight = std::nullopt;  ///< out [d], x's dtype or fp32
  /// [M,d], x's dtype: what reaches x beside n, as by a residual; absent: 0. It needs norm_weight.
  /// In C++ alone.
  std::optional<TensorView> addend = std::nullopt;
  /// Whether the weights' gradients are added to what the given buffers hold, in fp32; dx is not.
  bool accumulate = false;
};

/// Runs and throws as gemm_swiglu_forward does; bitwise repeatable, too. A row's NaN or inf reaches
/// dx of that row alone.
void gemm_swiglu_backward(const GemmSwigluBackwardArgs& args, const Context& context = {});

/// As gemm_swiglu_forward_workspace_bytes.
std::size_t gemm_swiglu_backward_workspace_bytes(const GemmSwigluBackwardArgs& args,
                                                 const DeviceProperties& device,
                                                 bool batch_invariant = false);

}  // namespace tandem
