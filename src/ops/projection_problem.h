// What projection's kernels are called with: arguments after every check.
#pragma once

#include <array>
#include <cstdint>

#include "core/strided_tensor.h"
#include "tandem/device.h"
#include "tandem/ops/projection.h"
#include "tandem/tensor.h"

namespace tandem {

/// Added to a head's sum of squares before the root.
inline constexpr double kL2NormalizeEpsilon = 1e-6;

/// A segment of a forward call. Null: absent.
struct ProjectionForwardSegment {
  int columns = 0;  // may be 0
  Activation activation = Activation::kNone;
  double divisor = 1;   // of log_sigmoid, else 1
  double min = 0;       // of softplus, -inf without a limit
  double max = 0;       // of softplus, inf without a limit
  int head_width = 0;   // of l2_normalize, else 0: a multiple of 8 up to 256, divides columns
  MatrixTensor weight;  // [columns,d]
  DType bias_dtype = DType::kFloat32;
  const void* bias = nullptr;         // [columns]
  DType out_dtype = DType::kFloat32;  // of out and slope: the problem's, or fp32
  MatrixTensor out;                   // [M,columns]
  MatrixTensor slope;                 // [M,columns] or null
  MatrixTensor inverse_norm;          // fp32 [M,columns/head_width] or null
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
};

/// What the forward kept of a segment, which says how dz follows from d_out.
enum class ProjectionKept { kNothing, kSlope, kNormalized };

/// A segment of a backward call. Null: absent, and of outputs not wanted.
struct ProjectionBackwardSegment {
  int columns = 0;  // may be 0
  ProjectionKept kept = ProjectionKept::kNothing;
  int head_width = 0;                      // kNormalized only: as in ProjectionForwardSegment
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
  MatrixTensor dx;          // [M,d] or null
  bool accumulate = false;  // d_weight and d_bias are added to what is there
};

}  // namespace tandem
