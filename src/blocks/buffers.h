// The workspace of a block: tensors between its ops, and behind them what the ops themselves need.
#pragma once

#include <cstddef>
#include <cstdint>

#include "tandem/tensor.h"

namespace tandem {

/// An address that no tensor has: a layout there is only looked at. Its views can be checked and
/// planned with, since neither reads data.
inline char* nowhere() { return reinterpret_cast<char*>(std::uintptr_t{1} << 62); }

/// The same memory in another shape.
inline TensorView reshaped(const TensorView& view, const Dims& shape) {
  return TensorView::contiguous(view.data, view.dtype, shape, view.device);
}

/// [B,T,...] as the rows of a matrix.
inline TensorView as_rows(const TensorView& view) {
  const Dims& shape = view.shape;
  const std::int64_t columns = shape.rank() == 4 ? shape[2] * shape[3] : shape[2];
  return reshaped(view, {shape[0] * shape[1], columns});
}

/// [B,1,...] without its time.
inline TensorView as_token(const TensorView& view) {
  const auto without_time = [](const Dims& all) {
    return all.rank() == 4 ? Dims{all[0], all[2], all[3]} : Dims{all[0], all[2]};
  };
  return {view.data, view.dtype, without_time(view.shape), without_time(view.strides), view.device};
}

/// Hands out one piece of memory after the other.
class Buffers {
 public:
  static constexpr std::size_t kAlignment = 256;

  Buffers(char* data, Device device) : data_(data), device_(device) {}

  TensorView take(DType dtype, const Dims& shape) {
    const TensorView view = TensorView::contiguous(data_ + bytes_, dtype, shape, device_);
    const auto bytes = static_cast<std::size_t>(shape.product() * size_of(dtype));
    bytes_ += (bytes + kAlignment - 1) / kAlignment * kAlignment;
    return view;
  }
  std::size_t bytes() const { return bytes_; }

 private:
  char* data_;
  Device device_;
  std::size_t bytes_ = 0;
};

}  // namespace tandem
