// What projection's kernels receive of heads that end in a norm and a rotation.
#pragma once

#include <cstdint>

#include "core/strided_tensor.h"
#include "cuda/projection/forward_params.h"

namespace tandem::cuda::projection {

/// The rotation's tables, and where each row's positions come from (ops/rope_problem.h).
struct RopeParams {
  MatrixTensor cos, sin;
  bool fp32 = false;  // the tables
  bool interleaved = false;
  int width = 0;  // columns of a head that are rotated
  int positions = 0;
  const std::int32_t* row_positions = nullptr;
  const std::int32_t* cu_seqlens = nullptr;
  int N = 0;
  int length = 0;
};

/// What a segment's heads end in, beside ForwardSegment: its slope is where products go that are
/// kept, its inverse_norm where the norm's rstd goes.
struct HeadSegment {
  const void* norm_weight = nullptr;
  bool norm_fp32 = false;
  bool rotates = false;
  float eps = 0.0f;
  std::uint32_t first_halves = 0;  // a bit per block of 8 columns of a tile: the first of its pairs
};

struct HeadsParams : ForwardParams {
  HeadSegment heads[kMostProjectionSegments];
  RopeParams rope;
};

/// Segments whose heads no tile finishes: z, which the product left in fp32 without gaps, to what
/// is kept and to out.
struct FinishParams {
  struct Segment {
    int columns = 0;
    int head_width = 0;
    const float* z = nullptr;
    HeadSegment heads;
    MatrixTensor out;
    bool out_fp32 = false;
    MatrixTensor pre_norm;  // or null
    MatrixTensor rstd;      // or null
  };
  std::int64_t M = 0;
  int count = 0;
  Segment segments[kMostProjectionSegments];
  RopeParams rope;
};

/// dz of segments, in 16 bits, from d_out, and the sums over slices of rows of the gradients by the
/// norms' weights.
struct HeadsGradientParams {
  struct Segment {
    int columns = 0;
    int head_width = 0;
    HeadSegment heads;
    MatrixTensor d_out;
    bool fp32 = false;  // d_out
    MatrixTensor pre_norm;
    MatrixTensor rstd;
    MatrixTensor dz;
    int slices = 1;
    float* partial_sums = nullptr;  // [slices,head_width] or null
    bool regular = false;           // rows of d_out and pre_norm begin at multiples of 16 bytes
  };
  std::int64_t M = 0;
  int count = 0;
  Segment segments[kMostProjectionSegments];
  RopeParams rope;
};

/// The sums of those slices, added to what is there with `accumulate`.
struct HeadSumParams {
  struct Segment {
    const float* partial_sums = nullptr;
    int slices = 0;
    int head_width = 0;
    void* result = nullptr;
    bool fp32 = false;  // the result
  };
  int count = 0;
  Segment segments[kMostProjectionSegments];
  bool accumulate = false;
};

/// Launch projection_heads_kernel with tiles of kColumns, projection_heads_few_rows_kernel for up
/// to kRows rows, projection_finish_kernel, projection_heads_gradient_kernel and
/// projection_head_sum_kernel. Instantiated in heads_instances.cuh.
template <class Element, int kColumns>
void launch_heads(const HeadsParams& params, int multiprocessors, void* stream);
template <class Element, int kRows>
void launch_heads_few_rows(const HeadsParams& params, int multiprocessors, void* stream);
template <class Element>
void launch_finish(const FinishParams& params, void* stream);
template <class Element>
void launch_heads_gradient(const HeadsGradientParams& params, void* stream);
template <class Element>
void launch_head_sum(const HeadSumParams& params, void* stream);

}  // namespace tandem::cuda::projection
