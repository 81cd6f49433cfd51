// Matrix products of normalised rows: what stands in front of attention and of an MLP.
//
//   n = x / sqrt(mean of x^2 + eps) norm_weight      x [M,d], the mean over each row
//   z = n W^T + bias                                 W [columns,d], for each segment of columns
//   out = RoPE(head norm(z))                         each or both where a segment asks for it
//
// The norm is that of Llama (Zhang and Sennrich, arXiv:1910.07467), its weight as it stands. In
// front of attention queries and keys end in heads that are rotated (Llama, Mistral), and that a
// norm of their own precedes (Qwen3).
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "tandem/context.h"
#include "tandem/device.h"
#include "tandem/tensor.h"

namespace tandem {

/// Segments of a call, at most: queries, keys, values and others of one norm.
inline constexpr int kMostRmsNormGemmSegments = 8;

/// Which columns of a head are a pair that RoPE rotates, of the first R. The numbers are those of
/// torch's op.
enum class RopeLayout : int {
  kRotateHalf = 0,   ///< j and j + R/2, as Llama has it
  kInterleaved = 1,  ///< 2j and 2j+1, as GPT-J has it
};

/// One segment of columns. There may be none of them: then nothing is computed.
struct RmsNormGemmSegment {
  TensorView weight;                              ///< [columns,d]
  std::optional<TensorView> bias = std::nullopt;  ///< [columns], x's dtype or fp32
  /// Of what follows: a multiple of 8 up to 256 that divides columns.
  std::optional<std::int64_t> head_width = std::nullopt;
  /// [head_width], x's dtype or fp32: each head is divided by sqrt(mean of its z^2 + head_eps) and
  /// multiplied by this.
  std::optional<TensorView> head_norm_weight = std::nullopt;
  std::optional<double> head_eps = std::nullopt;  ///< not negative: default 1e-6
  bool rotates = false;  ///< whether RoPE rotates its heads, behind their norm
  TensorView out;        ///< out [M,columns], x's dtype or fp32
  /// Out [M,columns], x's dtype, for the backward of a head norm: z, rounded.
  std::optional<TensorView> pre_norm = std::nullopt;
  /// Out fp32 [M,columns/head_width], for the same: 1 / sqrt(mean of z^2 + head_eps).
  std::optional<TensorView> head_rstd = std::nullopt;
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
  /// [P,R/2], x's dtype or fp32, both of one: cosines and sines of P positions and R/2 pairs of
  /// columns, as flash-attn and vLLM have them. R is at most the head_width of each segment that
  /// rotates; columns behind R stay as they are. Needed where a segment rotates.
  std::optional<TensorView> rope_cos = std::nullopt;
  std::optional<TensorView> rope_sin = std::nullopt;
  /// int32 [M]: which row of the tables each row takes. Without it, its place in its sequence where
  /// cu_seqlens or rope_length tells of sequences, else the row itself.
  std::optional<TensorView> rope_positions = std::nullopt;
  /// int32 [N+1]: where sequences begin; not beside the two others.
  std::optional<TensorView> cu_seqlens = std::nullopt;
  /// Rows of each sequence, which divides M; not beside rope_positions.
  std::optional<std::int64_t> rope_length = std::nullopt;
  RopeLayout rope_layout = RopeLayout::kRotateHalf;
  std::vector<RmsNormGemmSegment> segments;  ///< 1 to 8
  /// Out fp32 [M], for the backward: 1 / sqrt(mean of x^2 + eps), or a copy of the rstd given.
  std::optional<TensorView> kept_rstd = std::nullopt;
};

/// Runs on the device of the tensors, on `context.stream` there, without synchronising the host; on
/// the CPU it returns when done. n is rounded to x's dtype once, products are accumulated in fp32
/// and rounded once, when they are written. Bitwise repeatable on one device and build. A row's NaN
/// or inf reaches the outputs of that row alone. Head norms and RoPE take the fp32 products.
/// Positions in memory that leave [0,P) are clamped into it; M or rope_length that passes P is
/// refused, and so are, on the CPU, cu_seqlens that decrease or leave [0,M]. A row of no sequence
/// has its distance from the last begin before it, or from row 0. Throws InvalidArgument (shape,
/// dtype, device, stride, overlap, workspace), Unsupported (no variant can run it: the text lists
/// each and why) or CudaError, all before anything is written.
void rms_norm_gemm_forward(const RmsNormGemmForwardArgs& args, const Context& context = {});

/// Bytes of workspace that rms_norm_gemm_forward(args) needs on a device with these properties;
/// reads no tensor data. Throws as rms_norm_gemm_forward does.
std::size_t rms_norm_gemm_forward_workspace_bytes(const RmsNormGemmForwardArgs& args,
                                                  const DeviceProperties& device,
                                                  bool batch_invariant = false);

/// One segment of a backward call.
struct RmsNormGemmSegmentGradient {
  TensorView weight;                                          ///< [columns,d]
  std::optional<TensorView> bias = std::nullopt;              ///< [columns]; only d_bias needs it
  std::optional<std::int64_t> head_width = std::nullopt;      ///< as the forward had it
  std::optional<TensorView> head_norm_weight = std::nullopt;  ///< [head_width]
  bool rotates = false;                                       ///< as the forward had it
  std::optional<TensorView> pre_norm = std::nullopt;          ///< [M,columns], of a head norm
  std::optional<TensorView> head_rstd = std::nullopt;         ///< fp32 [M,columns/head_width], too
  std::optional<TensorView> d_out = std::nullopt;     ///< [M,columns], x's dtype or fp32; absent: 0
  std::optional<TensorView> d_weight = std::nullopt;  ///< out [columns,d], x's dtype or fp32
  std::optional<TensorView> d_bias = std::nullopt;    ///< out [columns], x's dtype or fp32
  /// Out [head_width], x's dtype or fp32.
  std::optional<TensorView> d_head_norm_weight = std::nullopt;
};

/// The gradient of a scalar loss through rms_norm_gemm_forward; only what is asked for is computed.
///
///   dy = d_out, rotated back where it was rotated
///   dz = dy, or of a head norm, with mh = z head_rstd, the means over each head:
///        dz = head_rstd (dy head_norm_weight - mh mean of (dy head_norm_weight mh))
///        d_head_norm_weight = sum over rows and heads of dy mh
///   dn = sum over the segments of dz W    d_weight = dz^T n    d_bias = sum over rows of dz
///   with m = x rstd:  dx = addend + rstd (dn norm_weight - m mean of (dn norm_weight m))
///                     d_norm_weight = sum over rows of dn m
///
/// n, dn and, where it is not d_out, dz are rounded to x's dtype. Sums have one order. No output
/// may overlap an input or another output.
struct RmsNormGemmBackwardArgs {
  TensorView x;                                       ///< as in RmsNormGemmForwardArgs
  TensorView norm_weight;                             ///< [d]
  TensorView rstd;                                    ///< fp32 [M]: what the forward kept, or had
  std::optional<TensorView> rope_cos = std::nullopt;  ///< what rotated, as the forward had it
  std::optional<TensorView> rope_sin = std::nullopt;
  std::optional<TensorView> rope_positions = std::nullopt;
  std::optional<TensorView> cu_seqlens = std::nullopt;
  std::optional<std::int64_t> rope_length = std::nullopt;
  RopeLayout rope_layout = RopeLayout::kRotateHalf;
  std::vector<RmsNormGemmSegmentGradient> segments;        ///< 1 to 8
  std::optional<TensorView> dx = std::nullopt;             ///< out, as x
  std::optional<TensorView> d_norm_weight = std::nullopt;  ///< out [d], x's dtype or fp32
  /// [M,d], x's dtype: what reaches x beside n, as by a residual; absent: 0. In C++ alone.
  std::optional<TensorView> addend = std::nullopt;
  /// Whether all gradients but dx are added to what the given buffers hold, in fp32.
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
