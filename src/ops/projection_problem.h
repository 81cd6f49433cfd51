// What projection's kernels are called with: arguments after every check.
#pragma once

#include <array>
#include <cstdint>

#include "core/strided_tensor.h"
#include "ops/rope_problem.h"
#include "tandem/device.h"
#include "tandem/ops/projection.h"
#include "tandem/tensor.h"

namespace tandem {

/// Added to a head's sum of squares before the root.
inline constexpr double kL2NormalizeEpsilon = 1e-6;

/// What follows the product in each head of a segment without activation: a weighted RMS norm, a
/// rotation, both or neither. Null: absent.
struct HeadFinish {
  DType norm_weight_dtype = DType::kFloat32;  // the problem's, or fp32
  const void* norm_weight = nullptr;          // [head_width]
  double eps = 0;                             // of a forward
  bool rotates = false;
  MatrixTensor pre_norm;  // [M,columns] in the problem's dtype: what is normalised, rounded
  MatrixTensor rstd;      // fp32 [M,columns/head_width]

  bool normalizes() const { return norm_weight != nullptr; }
  bool is_there() const { return normalizes() || rotates; }
};

/// A segment of a forward call. Null: absent.
struct ProjectionForwardSegment {
  int columns = 0;  // may be 0
  Activation activation = Activation::kNone;
  double divisor = 1;   // of log_sigmoid, else 1
  double min = 0;       // of softplus, -inf without a limit
  double max = 0;       // of softplus, inf without a limit
  int head_width = 0;   // of l2_normalize and heads, else 0: a multiple of 8 up to 256 that divides
                        // columns
  MatrixTensor weight;  // [columns,d]
  DType bias_dtype = DType::kFloat32;
  const void* bias = nullptr;         // [columns]
  DType out_dtype = DType::kFloat32;  // of out and slope: the problem's, or fp32
  MatrixTensor out;                   // [M,columns]
  MatrixTensor slope;                 // [M,columns] or null
  // Of a call by another op on CUDA, whose segments all have one, no activation and no bias: what
  // rounding z to out took away (cuda/parts/two_parts.cuh), in 16 bits [M,columns].
  MatrixTensor rest;
  MatrixTensor inverse_norm;  // fp32 [M,columns/head_width] or null
  HeadFinish heads;
};

/// ProjectionForwardArgs after every check: shapes agree, dtypes and devices fit, nothing overlaps.
struct ProjectionForwardProblem {
  DType dtype = DType::kBFloat16;  // of x and the weights
  Device device;
  std::int64_t M = 0;  // may be 0
  int d = 0;
  MatrixTensor x;  // [M,d]
  int segment_count = 0;
  std::array<ProjectionForwardSegment, kMostProjectionSegments> segments;
  Rope rope;
};

/// What the forward kept of a segment, which says how dz follows from d_out. Of heads that are only
/// rotated it keeps nothing.
enum class ProjectionKept { kNothing, kSlope, kNormalized, kHeads };

/// A segment of a backward call. Null: absent, and of outputs not wanted.
struct ProjectionBackwardSegment {
  int columns = 0;  // may be 0
  ProjectionKept kept = ProjectionKept::kNothing;
  int head_width = 0;                      // kNormalized and kHeads: as in ProjectionForwardSegment
  MatrixTensor weight;                     // [columns,d]
  DType out_dtype = DType::kFloat32;       // of d_out, and of slope or out: the problem's, or fp32
  MatrixTensor d_out;                      // [M,columns] or null: 0
  MatrixTensor slope;                      // [M,columns], of kSlope
  MatrixTensor out;                        // [M,columns], of kNormalized
  MatrixTensor inverse_norm;               // fp32 [M,columns/head_width], of kNormalized
  DType d_weight_dtype = DType::kFloat32;  // the problem's, or fp32
  MatrixTensor d_weight;                   // [columns,d] or null
  DType d_bias_dtype = DType::kFloat32;    // the problem's, or fp32
  void* d_bias = nullptr;                  // [columns] or null
  HeadFinish heads;                        // of kHeads
  DType d_head_norm_weight_dtype = DType::kFloat32;  // the problem's, or fp32
  void* d_head_norm_weight = nullptr;                // [head_width] or null
};

/// ProjectionBackwardArgs after every check.
struct ProjectionBackwardProblem {
  DType dtype = DType::kBFloat16;  // of x, the weights and dx
  Device device;
  std::int64_t M = 0;  // may be 0: sums over rows are 0 then
  int d = 0;
  MatrixTensor x;  // [M,d]
  int segment_count = 0;
  std::array<ProjectionBackwardSegment, kMostProjectionSegments> segments;
  Rope rope;
  MatrixTensor dx;          // [M,d] or null
  bool accumulate = false;  // all but dx are added to what is there
};

}  // namespace tandem
