// What projection's forward kernels receive.
#pragma once

#include <cuda.h>

#include <cstdint>

#include "core/strided_tensor.h"
#include "cuda/gemm/config.h"
#include "cuda/gemm/operands.h"
#include "cuda/gemm/target.h"
#include "ops/projection_problem.h"

namespace tandem::cuda::projection {

/// z becomes f(z); what f needs beside it.
struct SegmentActivation {
  Activation kind = Activation::kNone;
  float inverse_divisor = 1.0f;
  float min = 0.0f;
  float max = 0.0f;
};

struct ForwardSegment {
  gemm::Target out;
  gemm::Target slope;  // or what rounding out took away, of which there is no other
  SegmentActivation activation;
  int head_width = 0;
  std::uint32_t head_ends = 0;  // a bit per block of 8 columns of a tile: the last one of a head
  MatrixTensor inverse_norm;
  const void* bias = nullptr;
  bool bias_fp32 = false;

  __device__ const gemm::Target& rest() const { return slope; }
};

struct ForwardParams : gemm::Operands<kMostProjectionSegments> {
  ForwardSegment segments[kMostProjectionSegments];
};

/// A segment whose heads are wider than a tile: z, which the product left in fp32 without gaps, to
/// out and inverse_norm.
struct NormalizeParams {
  std::int64_t M = 0;
  int columns = 0;
  int head_width = 0;
  const float* z = nullptr;
  MatrixTensor out;
  bool out_fp32 = false;
  MatrixTensor inverse_norm;
};

/// Launch projection_forward_kernel with tiles of kColumns, `kPlain`: of products and biases alone,
/// projection_two_parts_kernel with such tiles,
/// projection_few_rows_kernel with tiles of up to kRows rows and kColumns, and
/// projection_normalize_kernel. Instantiated in forward_instances.cuh.
template <class Element, int kColumns, bool kPlain, int kParts>
void launch_forward(const ForwardParams& params, int multiprocessors, void* stream);
template <class Element, int kColumns, int kParts>
void launch_two_parts(const ForwardParams& params, int multiprocessors, void* stream);
template <class Element, int kRows, int kColumns>
void launch_few_rows(const ForwardParams& params, int multiprocessors, void* stream);
template <class Element>
void launch_normalize(const NormalizeParams& params, void* stream);

}  // namespace tandem::cuda::projection
