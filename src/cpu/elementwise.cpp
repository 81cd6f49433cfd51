#include "cpu/elementwise.h"

#include <cstring>

#include "core/float16.h"
#include "cpu/isa.h"

namespace tandem::cpu {
namespace {

template <typename T, typename Real>
TANDEM_ALWAYS_INLINE void to_float_loop(const ConstRows& from, std::int64_t rows,
                                        std::int64_t columns, Real* to, std::int64_t to_stride) {
  const T* data = static_cast<const T*>(from.data);
  for (std::int64_t i = 0; i < rows; ++i) {
    const T* __restrict source = data + i * from.stride;
    Real* __restrict target = to + i * to_stride;
    for (std::int64_t j = 0; j < columns; ++j) target[j] = to_float(source[j]);
  }
}

TANDEM_ALWAYS_INLINE void to_float_any(const ConstRows& from, std::int64_t rows,
                                       std::int64_t columns, float* to, std::int64_t to_stride) {
  switch (from.dtype) {
    case DType::kBFloat16: return to_float_loop<BFloat16>(from, rows, columns, to, to_stride);
    case DType::kFloat16: return to_float_loop<Float16>(from, rows, columns, to, to_stride);
    default: return to_float_loop<float>(from, rows, columns, to, to_stride);
  }
}

template <typename T, typename Real>
TANDEM_ALWAYS_INLINE void from_float_loop(const Real* from, std::int64_t from_stride,
                                          std::int64_t rows, std::int64_t columns, Real factor,
                                          const Rows& to) {
  T* data = static_cast<T*>(to.data);
  for (std::int64_t i = 0; i < rows; ++i) {
    const Real* __restrict source = from + i * from_stride;
    T* __restrict target = data + i * to.stride;
    for (std::int64_t j = 0; j < columns; ++j) target[j] = from_float<T>(source[j] * factor);
  }
}

TANDEM_ALWAYS_INLINE void from_float_any(const float* from, std::int64_t from_stride,
                                         std::int64_t rows, std::int64_t columns, float factor,
                                         const Rows& to) {
  switch (to.dtype) {
    case DType::kBFloat16:
      return from_float_loop<BFloat16>(from, from_stride, rows, columns, factor, to);
    case DType::kFloat16:
      return from_float_loop<Float16>(from, from_stride, rows, columns, factor, to);
    default: return from_float_loop<float>(from, from_stride, rows, columns, factor, to);
  }
}

template <typename T, typename Real>
TANDEM_ALWAYS_INLINE void dot_loop(const ConstRows& a, const Real* b, std::int64_t b_stride,
                                   std::int64_t rows, std::int64_t columns, Real* out) {
  constexpr int kLanes = 16;  // why: a sum of one accumulator is not vectorised
  for (std::int64_t i = 0; i < rows; ++i) {
    const T* __restrict x = static_cast<const T*>(a.data) + i * a.stride;
    const Real* __restrict y = b + i * b_stride;
    Real lanes[kLanes] = {};
    std::int64_t j = 0;
    for (; j + kLanes <= columns; j += kLanes) {
      for (int lane = 0; lane < kLanes; ++lane) {
        lanes[lane] += to_float(x[j + lane]) * y[j + lane];
      }
    }
    Real sum = 0;
    for (; j < columns; ++j) sum += to_float(x[j]) * y[j];
    for (const Real lane : lanes) sum += lane;
    out[i] = sum;
  }
}

TANDEM_ALWAYS_INLINE void dot_any(const ConstRows& a, const float* b, std::int64_t b_stride,
                                  std::int64_t rows, std::int64_t columns, float* out) {
  switch (a.dtype) {
    case DType::kBFloat16: return dot_loop<BFloat16>(a, b, b_stride, rows, columns, out);
    case DType::kFloat16: return dot_loop<Float16>(a, b, b_stride, rows, columns, out);
    default: return dot_loop<float>(a, b, b_stride, rows, columns, out);
  }
}

TANDEM_FOR_EACH_ISA(to_float,
                    (const ConstRows& from, std::int64_t rows, std::int64_t columns, float* to,
                     std::int64_t to_stride),
                    to_float_any(from, rows, columns, to, to_stride))
TANDEM_FOR_EACH_ISA(from_float,
                    (const float* from, std::int64_t from_stride, std::int64_t rows,
                     std::int64_t columns, float factor, const Rows& to),
                    from_float_any(from, from_stride, rows, columns, factor, to))

TANDEM_FOR_EACH_ISA(dot,
                    (const ConstRows& a, const float* b, std::int64_t b_stride, std::int64_t rows,
                     std::int64_t columns, float* out),
                    dot_any(a, b, b_stride, rows, columns, out))

}  // namespace

void rows_to_float(const ConstRows& from, std::int64_t rows, std::int64_t columns, float* to,
                   std::int64_t to_stride) {
  TANDEM_CALL_FOR_ISA(isa(), to_float, from, rows, columns, to, to_stride)
}

void rows_to_float(const ConstRows& from, std::int64_t rows, std::int64_t columns, double* to,
                   std::int64_t to_stride) {
  to_float_loop<double>(from, rows, columns, to, to_stride);
}

void rows_from_float(const float* from, std::int64_t from_stride, std::int64_t rows,
                     std::int64_t columns, float factor, const Rows& to) {
  TANDEM_CALL_FOR_ISA(isa(), from_float, from, from_stride, rows, columns, factor, to)
}

void rows_from_float(const double* from, std::int64_t from_stride, std::int64_t rows,
                     std::int64_t columns, double factor, const Rows& to) {
  from_float_loop<double>(from, from_stride, rows, columns, factor, to);
}

void dot_rows(const ConstRows& a, const float* b, std::int64_t b_stride, std::int64_t rows,
              std::int64_t columns, float* out) {
  TANDEM_CALL_FOR_ISA(isa(), dot, a, b, b_stride, rows, columns, out)
}

void dot_rows(const ConstRows& a, const double* b, std::int64_t b_stride, std::int64_t rows,
              std::int64_t columns, double* out) {
  dot_loop<double>(a, b, b_stride, rows, columns, out);
}

void fill_rows_with_zero(std::int64_t rows, std::int64_t columns, const Rows& to) {
  for (std::int64_t i = 0; i < rows; ++i) {
    std::memset(element_at(to.dtype, to.data, i * to.stride), 0, columns * size_of(to.dtype));
  }
}

}  // namespace tandem::cpu
