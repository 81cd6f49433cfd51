#include "tandem/tensor.h"

#include <algorithm>

#include "core/saturate.h"
#include "tandem/error.h"

namespace tandem {

Dims::Dims(std::span<const std::int64_t> values) : rank_(static_cast<int>(values.size())) {
  if (values.size() > kMaxRank) {
    throw InvalidArgument("[Dims] rank must be at most " + std::to_string(kMaxRank) + ", got " +
                          std::to_string(values.size()));
  }
  std::copy(values.begin(), values.end(), values_.begin());
}

std::int64_t Dims::product() const {
  std::int64_t product = 1;
  for (const std::int64_t value : *this) {
    if (value == 0) return 0;
    product = saturating_multiply(product, value);
  }
  return product;
}

std::string to_string(const Dims& dims) {
  std::string text = "[";
  for (int i = 0; i < dims.rank(); ++i) text += (i ? "," : "") + std::to_string(dims[i]);
  return text + "]";
}

std::string to_string(DType dtype) {
  switch (dtype) {
    case DType::kBFloat16: return "bf16";
    case DType::kFloat16: return "fp16";
    case DType::kFloat32: return "fp32";
    case DType::kFloat64: return "fp64";
    case DType::kInt32: return "int32";
  }
  return "unknown dtype";
}

TensorView TensorView::contiguous(void* data, DType dtype, const Dims& shape, Device device) {
  Dims strides = shape;
  std::int64_t stride = 1;
  for (int i = shape.rank() - 1; i >= 0; --i) {
    strides[i] = stride;
    stride = saturating_multiply(stride, std::max<std::int64_t>(shape[i], 1));
  }
  return {data, dtype, shape, strides, device};
}

}  // namespace tandem
