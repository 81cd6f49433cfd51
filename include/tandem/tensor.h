// TensorView: a non-owning, strided view of memory on one device.
#pragma once

#include <array>
#include <cstdint>
#include <initializer_list>
#include <span>
#include <string>

#include "tandem/device.h"

namespace tandem {

enum class DType { kBFloat16, kFloat16, kFloat32, kFloat64, kInt32 };

/// Bytes of one element.
constexpr std::int64_t size_of(DType dtype) {
  if (dtype == DType::kFloat64) return 8;
  return dtype == DType::kBFloat16 || dtype == DType::kFloat16 ? 2 : 4;
}

/// "bf16", "fp16", "fp32", "fp64" or "int32".
std::string to_string(DType dtype);

/// Up to kMaxRank extents (or strides, in elements).
class Dims {
 public:
  static constexpr int kMaxRank = 5;

  constexpr Dims() = default;
  /// Throws InvalidArgument for more than kMaxRank values.
  Dims(std::initializer_list<std::int64_t> values)
      : Dims(std::span<const std::int64_t>(values.begin(), values.size())) {}
  explicit Dims(std::span<const std::int64_t> values);

  int rank() const { return rank_; }
  std::int64_t operator[](int axis) const { return values_[axis]; }
  std::int64_t& operator[](int axis) { return values_[axis]; }
  const std::int64_t* begin() const { return values_.data(); }
  const std::int64_t* end() const { return values_.data() + rank_; }
  /// The number of elements, or 2^63-1 where there are more.
  std::int64_t product() const;
  friend bool operator==(const Dims&, const Dims&) = default;

 private:
  std::array<std::int64_t, kMaxRank> values_{};
  int rank_ = 0;
};

/// "[4,128,8,64]".
std::string to_string(const Dims& dims);

/// A view: the caller keeps the memory alive until the work that uses it is done.
/// `data` may be null only when the view has no elements.
struct TensorView {
  void* data = nullptr;
  DType dtype = DType::kFloat32;
  Dims shape;
  Dims strides;  ///< in elements
  Device device;

  /// Row-major view of `data`. Strides past 2^63-1 are that.
  static TensorView contiguous(void* data, DType dtype, const Dims& shape, Device device = {});
};

}  // namespace tandem
