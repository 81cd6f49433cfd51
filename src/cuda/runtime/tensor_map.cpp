#include "cuda/runtime/tensor_map.h"

#include <cudaTypedefs.h>

#include <algorithm>

#include "cuda/parts/panel.cuh"
#include "cuda/runtime/cuda_check.h"
#include "cuda/runtime/plan.h"

namespace tandem::cuda {
namespace {

constexpr std::uint64_t kLargestStride = std::uint64_t{1} << 40;

std::string check_plan(const char* name, const TensorMapPlan& plan) {
  static constexpr const char* kAxes[] = {"dim", "head", "time", "batch"};
  const std::string prefix = std::string(name) + " ";
  if (reinterpret_cast<std::uintptr_t>(plan.base) % 16 != 0) {
    return prefix + "does not start at a multiple of 16 bytes";
  }
  for (int axis = 0; axis < 4; ++axis) {
    const std::uint64_t extent = plan.extents[axis];
    if (extent == 0) return prefix + "has no elements";
    if (extent > static_cast<std::uint64_t>(kMaxIndex)) {  // coordinates are int32
      return prefix + "has " + std::to_string(extent) + " elements along " + kAxes[axis];
    }
  }
  for (int axis = 1; axis < 4; ++axis) {
    const std::uint64_t stride = plan.stride_bytes[axis - 1];
    if (stride == 0 || stride % 16 != 0 || stride >= kLargestStride) {
      return prefix + "has a " + kAxes[axis] + " stride of " + std::to_string(stride) +
             " bytes, not a positive multiple of 16 below 2^40";
    }
  }
  return "";
}

PFN_cuTensorMapEncodeTiled_v12000 encoder() {
  static const auto function = [] {
    void* pointer = nullptr;
    cudaDriverEntryPointQueryResult result{};
    cuda_check(cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &pointer, 12000,
                                                cudaEnableDefault, &result),
               "cudaGetDriverEntryPointByVersion");
    if (result != cudaDriverEntryPointSuccess || pointer == nullptr) {
      throw CudaError(
          "[cuTensorMapEncodeTiled] the driver does not have it: CUDA 12.0 or later needed");
    }
    return reinterpret_cast<PFN_cuTensorMapEncodeTiled_v12000>(pointer);
  }();
  return function;
}

}  // namespace

TensorMapPlan plan_tile(const char* name, const StridedTensor& tensor, DType dtype,
                        const TileExtents& extents, int rows) {
  TensorMapPlan plan;
  plan.dtype = dtype;
  plan.base = tensor.data;
  const std::array<std::int64_t, 4> sizes{extents.dim, extents.heads, extents.time, extents.batch};
  const std::array<std::int64_t, 3> strides{tensor.head_stride, tensor.time_stride,
                                            tensor.batch_stride};
  std::copy(sizes.begin(), sizes.end(), plan.extents.begin());
  for (int axis = 0; axis < 3; ++axis) {
    // A single element is never stepped over: any legal stride will do.
    const bool single = sizes[axis + 1] == 1;
    plan.stride_bytes[axis] =
        single ? 16 : static_cast<std::uint64_t>(strides[axis] * size_of(dtype));
  }
  plan.box = {kPanelColumns, 1, static_cast<std::uint32_t>(rows), 1};
  plan.problem = check_plan(name, plan);
  return plan;
}

TensorMapPlan plan_stored_tile(const char* name, const StridedTensor& tensor, DType dtype,
                               const TileExtents& extents, int rows) {
  TensorMapPlan plan = plan_tile(name, tensor, dtype, extents, rows);
  const std::int64_t row_bytes = extents.dim * size_of(dtype);
  if (plan.problem.empty() && row_bytes % 16 != 0) {
    plan.problem = std::string(name) + " has rows of " + std::to_string(row_bytes) +
                   " bytes, which a store would fill up to a multiple of 16";
  }
  return plan;
}

TensorMapPlan plan_rows(const char* name, const TokenTensor& tensor, DType dtype,
                        const TileExtents& extents, int rows, int columns) {
  const StridedTensor strided{tensor.data, tensor.batch_stride, tensor.time_stride, 0};
  TensorMapPlan plan = plan_tile(name, strided, dtype, extents, rows);
  plan.box[0] = static_cast<std::uint32_t>(columns);
  plan.swizzled = false;
  return plan;
}

CUtensorMap encode(const TensorMapPlan& plan) {
  CUtensorMap map{};
  const std::array<std::uint32_t, 4> element_strides{1, 1, 1, 1};
  const CUtensorMapDataType type = plan.dtype == DType::kBFloat16 ? CU_TENSOR_MAP_DATA_TYPE_BFLOAT16
                                   : plan.dtype == DType::kFloat16
                                       ? CU_TENSOR_MAP_DATA_TYPE_FLOAT16
                                       : CU_TENSOR_MAP_DATA_TYPE_FLOAT32;
  const CUresult status =
      encoder()(&map, type, 4, plan.base, plan.extents.data(), plan.stride_bytes.data(),
                plan.box.data(), element_strides.data(), CU_TENSOR_MAP_INTERLEAVE_NONE,
                plan.swizzled ? CU_TENSOR_MAP_SWIZZLE_128B : CU_TENSOR_MAP_SWIZZLE_NONE,
                CU_TENSOR_MAP_L2_PROMOTION_L2_128B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  if (status != CUDA_SUCCESS) {
    throw CudaError("[cuTensorMapEncodeTiled] the driver refused the map, error " +
                    std::to_string(static_cast<int>(status)));
  }
  return map;
}

}  // namespace tandem::cuda
