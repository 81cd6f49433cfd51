// Rows of x and of weights as operands of the CPU's products: as they lie where a product takes
// them, else a copy.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "core/real.h"
#include "core/strided_tensor.h"
#include "cpu/elementwise.h"
#include "cpu/matmul.h"
#include "tandem/tensor.h"

namespace tandem::cpu {

class RowOperands {
 public:
  /// Of matrices of `dtype` with rows of d elements.
  RowOperands(DType dtype, std::int64_t d, MatmulProvider provider)
      : from_(dtype),
        to_(dtype == DType::kBFloat16 && matmul_prefers_bf16(provider) ? dtype : real_dtype(dtype)),
        d_(d) {}

  /// What products take the operands in.
  DType dtype() const { return to_; }

  /// `rows` rows, and zeros behind them to `padded` rows; a copy lies in the scratch.
  MatmulOperand rows(const MatrixTensor& matrix, std::int64_t first, std::int64_t rows,
                     std::int64_t padded, std::vector<std::byte>& scratch) const {
    const void* data = element_at(from_, matrix.data, first * matrix.row_stride);
    // A product's rows must not overlap.
    if (rows == padded && from_ == to_ && matrix.row_stride >= d_) return {data, matrix.row_stride};
    const std::int64_t bytes = d_ * size_of(to_);
    scratch.resize(padded * bytes);
    copy({from_, data, matrix.row_stride}, rows, scratch.data());
    std::fill(scratch.begin() + rows * bytes, scratch.end(), std::byte{0});
    return {scratch.data(), d_};
  }

 private:
  void copy(const ConstRows& from, std::int64_t rows, std::byte* to) const {
    if (to_ == DType::kFloat64) {
      rows_to_float(from, rows, d_, reinterpret_cast<double*>(to), d_);
    } else if (to_ == DType::kFloat32) {
      rows_to_float(from, rows, d_, reinterpret_cast<float*>(to), d_);
    } else {
      const std::int64_t bytes = d_ * size_of(to_), stride = from.stride * size_of(to_);
      for (std::int64_t i = 0; i < rows; ++i) {
        std::copy_n(static_cast<const std::byte*>(from.data) + i * stride, bytes, to + i * bytes);
      }
    }
  }

  DType from_, to_;
  std::int64_t d_;
};

}  // namespace tandem::cpu
