// TMA descriptors of [B,T,heads,dim] tensors. The plan is a plain description, made and tested
// without a GPU; encoding it needs the driver, which is looked up at run time so that libcuda is
// never linked.
#pragma once

#include <cuda.h>

#include <array>
#include <cstdint>
#include <string>

#include "core/strided_tensor.h"
#include "tandem/tensor.h"

namespace tandem::cuda {

/// A tiled copy of 16-bit or fp32 elements, described from the innermost axis: dim, head, time,
/// batch. `problem` says why TMA cannot do it, "" when it can.
struct TensorMapPlan {
  DType dtype = DType::kBFloat16;
  void* base = nullptr;
  std::array<std::uint64_t, 4> extents{};
  std::array<std::uint64_t, 3> stride_bytes{};  // of head, time and batch
  std::array<std::uint32_t, 4> box{};
  bool swizzled = true;  // a panel (cuda/parts/panel.cuh), or rows as they are
  std::string problem;
};

/// Extents of a [B,T,heads,dim] tensor.
struct TileExtents {
  std::int64_t batch;
  std::int64_t time;
  std::int64_t heads;
  std::int64_t dim;
};

/// Plans copies of `rows` tokens by 64 columns of one head. `name` is the argument's, for
/// `problem`.
TensorMapPlan plan_tile(const char* name, const StridedTensor& tensor, DType dtype,
                        const TileExtents& extents, int rows);

/// The same for a tensor that is written. A store fills a row up to a multiple of 16 bytes with
/// zeros, so rows must be whole 16 bytes: what lies between them is not ours.
TensorMapPlan plan_stored_tile(const char* name, const StridedTensor& tensor, DType dtype,
                               const TileExtents& extents, int rows);

/// Plans copies of `rows` tokens by `columns` channels of a [B,T,D] tensor, as they are.
TensorMapPlan plan_rows(const char* name, const TokenTensor& tensor, DType dtype,
                        const TileExtents& extents, int rows, int columns);

/// Encodes a plan whose `problem` is empty. Throws CudaError when the driver refuses.
CUtensorMap encode(const TensorMapPlan& plan);

}  // namespace tandem::cuda
