// Projection: several matrix products of the same rows, each with what follows it fused in.
//
//   z = x W^T + bias                        x [M,d], W [columns,d], for each segment of columns
//   out = f(z)                              none, silu, sigmoid, log_sigmoid, softplus,
//   l2_normalize
//
// What a layer computes from its tokens before the sequence mixing: queries, keys, values, gates
// and decays. docs/ops/projection.md derives the gradients and says what is kept for them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "tandem/context.h"
#include "tandem/device.h"
#include "tandem/tensor.h"

namespace tandem {

/// f, on fp32 values that were not rounded before. The numbers are those of torch's op.
enum class Activation : int {
  kNone = 0,
  kSilu = 1,         ///< z / (1 + exp(-z))
  kSigmoid = 2,      ///< 1 / (1 + exp(-z))
  kLogSigmoid = 3,   ///< log(1 / (1 + exp(-z))) / divisor
  kSoftplus = 4,     ///< log(1 + exp(z)), clamped to [min,max]
  kL2Normalize = 5,  ///< z / sqrt(sum of z^2 + 1e-6), the sum over each head of head_width columns
};

/// Segments of a call, at most.
inline constexpr int kMostProjectionSegments = 8;

/// One segment of columns. There may be none of them: then nothing is computed.
struct ProjectionSegment {
  TensorView weight;                              ///< [columns,d]
  std::optional<TensorView> bias = std::nullopt;  ///< [columns], x's dtype or fp32
  Activation activation = Activation::kNone;
  std::optional<double> divisor =
      std::nullopt;                          ///< of log_sigmoid, positive: default 16, as in GLA
  std::optional<double> min = std::nullopt;  ///< of softplus: default no limit
  std::optional<double> max = std::nullopt;  ///< of softplus: default no limit
  /// Of l2_normalize: a multiple of 8 up to 256 that divides columns.
  std::optional<std::int64_t> head_width = std::nullopt;
  TensorView out;  ///< out [M,columns], x's dtype or fp32
  /// Out [M,columns], out's dtype, for the backward: df/dz of silu, sigmoid, log_sigmoid and
  /// softplus (there 0 where z is clamped).
  std::optional<TensorView> slope = std::nullopt;
  /// Out fp32 [M,columns/head_width], for the backward: 1 / sqrt(sum of z^2 + 1e-6) of
  /// l2_normalize.
  std::optional<TensorView> inverse_norm = std::nullopt;
};

/// M rows, d input width. x and the weights share one dtype: bf16 or fp16, on the CPU also fp32 and
/// fp64. With fp64, which is plain and slow, what is fp32 is fp64, arithmetic included. The
/// innermost stride of every tensor is 1, the others are free; bases and strides that are multiples
/// of 16 bytes run at full speed, anything else runs slower. Weights may be rows of one matrix, or
/// one the other's.
struct ProjectionForwardArgs {
  TensorView x;                             ///< [M,d]
  std::vector<ProjectionSegment> segments;  ///< 1 to 8
};

/// Runs on the device of the tensors, on `context.stream` there, without synchronising the host; on
/// the CPU it returns when done. Products are accumulated in fp32 and rounded once, when they are
/// written. Bitwise repeatable on one device and build. A row's NaN or inf reaches the outputs of
/// that row alone. Throws InvalidArgument (shape, dtype, device, stride, overlap, workspace),
/// Unsupported (no variant can run it: the text lists each and why) or CudaError, all before
/// anything is written.
void projection_forward(const ProjectionForwardArgs& args, const Context& context = {});

/// Bytes of workspace that projection_forward(args) needs on a device with these properties; reads
/// no tensor data. Throws as projection_forward does.
std::size_t projection_forward_workspace_bytes(const ProjectionForwardArgs& args,
                                               const DeviceProperties& device,
                                               bool batch_invariant = false);

/// One segment of a backward call. What the forward kept says which activation it had: nothing is
/// none, slope one of four, inverse_norm with out l2_normalize. An out alone is not read.
struct ProjectionSegmentGradient {
  TensorView weight;                              ///< [columns,d]
  std::optional<TensorView> bias = std::nullopt;  ///< as in ProjectionSegment; only d_bias needs it
  std::optional<TensorView> slope = std::nullopt;         ///< [M,columns], d_out's dtype
  std::optional<TensorView> out = std::nullopt;           ///< [M,columns], d_out's dtype
  std::optional<TensorView> inverse_norm = std::nullopt;  ///< fp32 [M,heads]; it needs out
  std::optional<TensorView> d_out = std::nullopt;     ///< [M,columns], x's dtype or fp32; absent: 0
  std::optional<TensorView> d_weight = std::nullopt;  ///< out [columns,d], x's dtype or fp32
  std::optional<TensorView> d_bias = std::nullopt;    ///< out [columns], x's dtype or fp32
};

/// The gradient of a scalar loss through projection_forward; only what is asked for is computed.
///
///   dz = d_out                                            none
///   dz = d_out slope                                      silu, sigmoid, log_sigmoid, softplus
///   dz = inverse_norm (d_out - out <d_out, out>)          l2_normalize, <,> over each head
///   dx = sum over the segments of dz W      d_weight = dz^T x      d_bias = sum over rows of dz
///
/// Sums have one order. No output may overlap an input or another output.
struct ProjectionBackwardArgs {
  TensorView x;                                     ///< as in ProjectionForwardArgs
  std::vector<ProjectionSegmentGradient> segments;  ///< 1 to 8
  std::optional<TensorView> dx = std::nullopt;      ///< out, as x
  /// Whether d_weight and d_bias are added to what the given buffers hold, in fp32; dx is not.
  bool accumulate = false;
};

/// Runs and throws as projection_forward does; bitwise repeatable, too. A row's NaN or inf reaches
/// dx of that row alone.
void projection_backward(const ProjectionBackwardArgs& args, const Context& context = {});

/// As projection_forward_workspace_bytes.
std::size_t projection_backward_workspace_bytes(const ProjectionBackwardArgs& args,
                                                const DeviceProperties& device,
                                                bool batch_invariant = false);

}  // namespace tandem
