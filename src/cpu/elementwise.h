// Element-wise leaves of the CPU backend: rows of a tensor to and from fp32, and of fp64 as they
// are.
#pragma once

#include <cstdint>

#include "tandem/tensor.h"

namespace tandem::cpu {

/// Rows of a tensor: `stride` elements apart, contiguous inside.
struct ConstRows {
  DType dtype;
  const void* data;
  std::int64_t stride;
};

struct Rows {
  DType dtype;
  void* data;
  std::int64_t stride;
};

/// Returns the address of element `index` of a buffer of `dtype`.
inline const void* element_at(DType dtype, const void* data, std::int64_t index) {
  return static_cast<const char*>(data) + index * size_of(dtype);
}
inline void* element_at(DType dtype, void* data, std::int64_t index) {
  return static_cast<char*>(data) + index * size_of(dtype);
}

void rows_to_float(const ConstRows& from, std::int64_t rows, std::int64_t columns, float* to,
                   std::int64_t to_stride);
void rows_to_float(const ConstRows& from, std::int64_t rows, std::int64_t columns, double* to,
                   std::int64_t to_stride);

/// to = from * factor, rounded to nearest even.
void rows_from_float(const float* from, std::int64_t from_stride, std::int64_t rows,
                     std::int64_t columns, float factor, const Rows& to);
void rows_from_float(const double* from, std::int64_t from_stride, std::int64_t rows,
                     std::int64_t columns, double factor, const Rows& to);

/// out(i) = the dot product of row i of a and row i of b.
void dot_rows(const ConstRows& a, const float* b, std::int64_t b_stride, std::int64_t rows,
              std::int64_t columns, float* out);
void dot_rows(const ConstRows& a, const double* b, std::int64_t b_stride, std::int64_t rows,
              std::int64_t columns, double* out);

void fill_rows_with_zero(std::int64_t rows, std::int64_t columns, const Rows& to);

}  // namespace tandem::cpu
