// Random tensors on the host, and their values, for the tests of blocks.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>
#include <random>
#include <vector>

#include "core/float16.h"
#include "reference/element.h"
#include "tandem/tensor.h"

namespace tandem::tools {

inline void set_value(const TensorView& view, std::int64_t i, double value) {
  const auto narrow = static_cast<float>(value);
  switch (view.dtype) {
    case DType::kBFloat16:
      static_cast<BFloat16*>(view.data)[i] = from_float<BFloat16>(narrow);
      return;
    case DType::kFloat16: static_cast<Float16*>(view.data)[i] = from_float<Float16>(narrow); return;
    case DType::kFloat64: static_cast<double*>(view.data)[i] = value; return;
    case DType::kInt32:
      static_cast<std::int32_t*>(view.data)[i] = static_cast<std::int32_t>(value);
      return;
    default: static_cast<float*>(view.data)[i] = narrow;
  }
}

inline double value_of(const TensorView& view, std::int64_t i) {
  return view.dtype == DType::kInt32 ? static_cast<const std::int32_t*>(view.data)[i]
                                     : reference::element(view.dtype, view.data, i);
}

inline std::vector<double> values_of(const TensorView& view) {
  std::vector<double> values;
  for (std::int64_t i = 0; i < view.shape.product(); ++i) values.push_back(value_of(view, i));
  return values;
}

/// Relative root mean square of the difference; NaN if there is one.
inline double difference(const std::vector<double>& got, const std::vector<double>& expected) {
  if (got.size() != expected.size()) return NAN;
  double error = 0, norm = 0;
  for (std::size_t i = 0; i < got.size(); ++i) {
    error += (got[i] - expected[i]) * (got[i] - expected[i]);
    norm += expected[i] * expected[i];
  }
  return std::sqrt(error / norm);
}

/// Owns the memory of tensors, of one dtype where no other is asked for.
class RandomTensors {
 public:
  RandomTensors(DType dtype, unsigned seed) : dtype_(dtype), generator_(seed) {}

  TensorView zeros(DType dtype, const Dims& shape) {
    // why doubles: aligned to every element.
    auto& memory = memory_.emplace_back(shape.product() * size_of(dtype) / 8 + 1);
    return TensorView::contiguous(memory.data(), dtype, shape);
  }
  TensorView zeros(const Dims& shape) { return zeros(dtype_, shape); }
  TensorView normal(const Dims& shape, double mean, double deviation) {
    std::normal_distribution<double> values(mean, deviation);
    const TensorView view = zeros(shape);
    for (std::int64_t i = 0; i < shape.product(); ++i) set_value(view, i, values(generator_));
    return view;
  }
  TensorView matrix(std::int64_t rows, std::int64_t columns) {
    return normal({rows, columns}, 0, 1 / std::sqrt(static_cast<double>(columns)));
  }
  /// The offsets of packed sequences; of none: absent.
  std::optional<TensorView> cu_seqlens(const std::vector<std::int64_t>& begins) {
    if (begins.empty()) return std::nullopt;
    const auto count = static_cast<std::int64_t>(begins.size());
    const TensorView view = zeros(DType::kInt32, {count});
    for (std::int64_t i = 0; i < count; ++i) set_value(view, i, static_cast<double>(begins[i]));
    return view;
  }
  /// The values of another tensor, rounded to a dtype.
  TensorView copy(DType dtype, const TensorView& from) {
    const TensorView view = zeros(dtype, from.shape);
    for (std::int64_t i = 0; i < from.shape.product(); ++i) set_value(view, i, value_of(from, i));
    return view;
  }

  /// Memory aligned as workspaces are.
  char* aligned(std::size_t bytes) {
    constexpr std::size_t kAlignment = 256;
    auto* data = reinterpret_cast<char*>(memory_.emplace_back((bytes + kAlignment) / 8 + 1).data());
    return data + (kAlignment - reinterpret_cast<std::uintptr_t>(data) % kAlignment) % kAlignment;
  }

  DType dtype() const { return dtype_; }

 private:
  DType dtype_;
  std::mt19937 generator_;
  std::deque<std::vector<double>> memory_;
};

/// Tokens [first, first + count) of each row of x [B,T,d], as [B,count,d].
inline TensorView tokens_of(RandomTensors& memory, const TensorView& x, std::int64_t first,
                            std::int64_t count) {
  const std::int64_t B = x.shape[0], T = x.shape[1], d = x.shape[2];
  const TensorView part = memory.zeros(x.dtype, {B, count, d});
  for (std::int64_t i = 0; i < B * count * d; ++i) {
    const std::int64_t row = i / (count * d), inside = i % (count * d);
    set_value(part, i, value_of(x, (row * T + first) * d + inside));
  }
  return part;
}

/// Token t of values [B,T,d], as [B,d].
inline std::vector<double> token_of(const std::vector<double>& values, const Dims& shape,
                                    std::int64_t t) {
  std::vector<double> token;
  for (std::int64_t b = 0; b < shape[0]; ++b) {
    const auto row = values.begin() + (b * shape[1] + t) * shape[2];
    token.insert(token.end(), row, row + shape[2]);
  }
  return token;
}

}  // namespace tandem::tools
