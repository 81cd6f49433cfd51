// Matrix products of normalised rows: what stands in front of attention and of an MLP.
//
//   n = x / sqrt(mean of x^2 + eps) norm_weight      x [M,d], the mean over each row
//   out = n W^T + bias                               W [columns,d], for each segment of columns
//
// The norm is that of Llama (Zhang and Sennrich, arXiv:1910.07467), its weight as it stands.
#pragma once

#include <cstddef>
#include <optional>
#include <vector>

#include "tandem/context.h"
#include "tandem/device.h"
#include "tandem/tensor.h"

namespace tandem {

/// Segments of a call, at most: queries, keys, values and others of one norm.
inline constexpr int kMostRmsNormGemmSegments = 8;

/// One segment of columns. There may be none of them: then nothing is computed.
struct RmsNormGemmSegment {
  TensorView weight;                              ///< [columns,d]
  std::optional<TensorView> bias = std::nullopt;  ///< [columns], x's dtype or fp32
  TensorView out;                                 ///< out [M,columns], x's dtype or fp32
};

/// M rows, d input width. x and the weights share one dtype: bf16 or fp16, on the CPU also fp32 and
/// fp64. With fp64, which is plain and slow, what is fp32 is fp64, arithmetic included. The
/// innermost stride of every tensor is 1, the others are free; bases and strides that are multiples
/// of 16 bytes run at full speed, anything else runs slower. Weights may be rows of one matrix.
struct RmsNormGemmForwardArgs {
  TensorView x;            ///< [M,d]
  TensorView norm_weight;  ///< [d], x's dtype or fp32
  /// Not negative: default 1e-6. With 0 a row of zeros gives NaN.
  std::optional<double> eps = std::nullopt;
  /// fp32 [M]: 1 / sqrt(mean of x^2 + eps) of each row, where another op has computed it; eps must
  /// not be given then.
  std::optional<TensorView> rstd = std::nullopt;
  std::vector<RmsNormGemmSegment> segments;  ///< 1 to 8
  /// Out fp32 [M], for the backward: 1 / sqrt(mean of x^2 + eps), or a copy of the rstd given.
  std::optional<TensorView> kept_rstd = std::nullopt;
};

/// Runs on the device of the tensors, on `context.stream` there, without synchronising the host; on
/// the CPU it returns when done. n is rounded to x's dtype once, products are accumulated in fp32
/// and rounded once, when they are written. Bitwise repeatable on one device and build. A row's NaN
/// or inf reaches the outputs of that row alone. Throws InvalidArgument (shape, dtype, device,
/// stride, overlap, workspace), Unsupported (no variant can run it: the text lists each and why) or
/// CudaError, all before anything is written.
void rms_norm_gemm_forward(const RmsNormGemmForwardArgs& args, const Context& context = {});

/// Bytes of workspace that rms_norm_gemm_forward(args) needs on a device with these properties;
/// reads no tensor data. Throws as rms_norm_gemm_forward does.
std::size_t rms_norm_gemm_forward_workspace_bytes(const RmsNormGemmForwardArgs& args,
                                                  const DeviceProperties& device,
                                                  bool batch_invariant = false);

/// One segment of a backward call.
struct RmsNormGemmSegmentGradient {
  TensorView weight;                                  ///< [columns,d]
  std::optional<TensorView> bias = std::nullopt;      ///< [columns]; only d_bias needs it
  std::optional<TensorView> d_out = std::nullopt;     ///< [M,columns], x's dtype or fp32; absent: 0
  std::optional<TensorView> d_weight = std::nullopt;  ///< out [columns,d], x's dtype or fp32
  std::optional<TensorView> d_bias = std::nullopt;    ///< out [columns], x's dtype or fp32
};

/// The gradient of a scalar loss through rms_norm_gemm_forward; only what is asked for is computed.
///
///   dn = sum over the segments of d_out W    d_weight = d_out^T n    d_bias = sum over rows of
///   d_out with m = x rstd:  dx = rstd (dn norm_weight - m mean of (dn norm_weight m))
///                     d_norm_weight = sum over rows of dn m
///
/// n and dn are rounded to x's dtype. Sums have one order. No output may overlap an input or
/// another output.
struct RmsNormGemmBackwardArgs {
  TensorView x;                                      ///< as in RmsNormGemmForwardArgs
  TensorView norm_weight;                            ///< [d]
  TensorView rstd;                                   ///< fp32 [M]: what the forward kept, or had
  std::vector<RmsNormGemmSegmentGradient> segments;  ///< 1 to 8
  std::optional<TensorView> dx = std::nullopt;       ///< out, as x
  std::optional<TensorView> d_norm_weight = std::nullopt;  ///< out [d], x's dtype or fp32
  /// Whether d_norm_weight, d_weight and d_bias are added to what the given buffers hold, in fp32;
  /// dx is not.
  bool accumulate = false;
};

/// Runs and throws as rms_norm_gemm_forward does; bitwise repeatable, too. A row's NaN or inf
/// reaches dx of that row alone.
void rms_norm_gemm_backward(const RmsNormGemmBackwardArgs& args, const Context& context = {});

/// As rms_norm_gemm_forward_workspace_bytes.
std::size_t rms_norm_gemm_backward_workspace_bytes(const RmsNormGemmBackwardArgs& args,
                                                   const DeviceProperties& device,
                                                   bool batch_invariant = false);

}  // namespace tandem
