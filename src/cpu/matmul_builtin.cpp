// Matrix products without a library: register-blocked tiles over panels of B, in GCC's vector
// types, one version per instruction set.
#include <algorithm>
#include <cstdint>
#include <cstring>
#include <vector>

#include "cpu/elementwise.h"
#include "cpu/isa.h"
#include "cpu/matmul.h"

namespace tandem::cpu {
namespace {

constexpr std::int64_t kPanelDepth = 256;  // rows of a B panel: 32 KB of it with AVX-512
constexpr std::int64_t kLargestPanelWidth = 32;

/// A strided fp32 matrix: element (i, j) at data[i * row_stride + j * column_stride].
struct Matrix {
  const float* data;
  std::int64_t row_stride;
  std::int64_t column_stride;

  const float* at(std::int64_t i, std::int64_t j) const {
    return data + i * row_stride + j * column_stride;
  }
};

struct Destination {
  float* data;
  std::int64_t stride;
  float alpha;
  bool accumulate;
};

template <int kBytes>
struct Vector {
  typedef float Type __attribute__((vector_size(kBytes)));
  static constexpr int kLanes = kBytes / sizeof(float);
};

/// Computes kRows rows by two vectors of C over one panel of B. `columns` is less than two vectors
/// at the right edge only.
template <int kBytes, int kRows>
TANDEM_ALWAYS_INLINE void multiply_tile(std::int64_t depth, const Matrix& a, const float* b,
                                        std::int64_t b_stride, const Destination& c,
                                        std::int64_t columns) {
  using Lane = Vector<kBytes>;
  using Vec = typename Lane::Type;
  constexpr int kWidth = 2 * Lane::kLanes;
  Vec sum[kRows][2] = {};
  for (std::int64_t k = 0; k < depth; ++k) {
    Vec b0, b1;
    std::memcpy(&b0, b + k * b_stride, sizeof(Vec));
    std::memcpy(&b1, b + k * b_stride + Lane::kLanes, sizeof(Vec));
#pragma GCC unroll 8
    for (int m = 0; m < kRows; ++m) {
      const float value = *a.at(m, k);
      sum[m][0] += value * b0;
      sum[m][1] += value * b1;
    }
  }
#pragma GCC unroll 8
  for (int m = 0; m < kRows; ++m) {
    float* row = c.data + m * c.stride;
    Vec out[2] = {c.alpha * sum[m][0], c.alpha * sum[m][1]};
    if (columns == kWidth) {
      if (c.accumulate) {
        Vec old[2];
        std::memcpy(&old, row, sizeof(old));
        out[0] += old[0];
        out[1] += old[1];
      }
      std::memcpy(row, &out, sizeof(out));
    } else {
      float values[kWidth];
      std::memcpy(values, &out, sizeof(out));
      for (std::int64_t n = 0; n < columns; ++n)
        row[n] = c.accumulate ? row[n] + values[n] : values[n];
    }
  }
}

/// Copies B[k0.., n0..] into a [depth][width] panel, zero beyond `columns`.
TANDEM_ALWAYS_INLINE void pack_panel(const Matrix& b, std::int64_t depth, std::int64_t columns,
                                     std::int64_t width, float* panel) {
  if (b.column_stride == 1) {
    for (std::int64_t k = 0; k < depth; ++k) {
      for (std::int64_t n = 0; n < columns; ++n)
        panel[k * width + n] = b.data[k * b.row_stride + n];
      for (std::int64_t n = columns; n < width; ++n) panel[k * width + n] = 0.0f;
    }
    return;
  }
  // Turns 4x4 blocks of a transposed B in registers.
  using Vec = Vector<16>::Type;
  std::int64_t n = 0;
  for (; n + 4 <= columns; n += 4) {
    std::int64_t k = 0;
    for (; b.row_stride == 1 && k + 4 <= depth; k += 4) {
      Vec in[4], out[4];
      for (int i = 0; i < 4; ++i) std::memcpy(&in[i], b.at(k, n + i), sizeof(Vec));
      const Vec low01 = __builtin_shufflevector(in[0], in[1], 0, 4, 1, 5);
      const Vec high01 = __builtin_shufflevector(in[0], in[1], 2, 6, 3, 7);
      const Vec low23 = __builtin_shufflevector(in[2], in[3], 0, 4, 1, 5);
      const Vec high23 = __builtin_shufflevector(in[2], in[3], 2, 6, 3, 7);
      out[0] = __builtin_shufflevector(low01, low23, 0, 1, 4, 5);
      out[1] = __builtin_shufflevector(low01, low23, 2, 3, 6, 7);
      out[2] = __builtin_shufflevector(high01, high23, 0, 1, 4, 5);
      out[3] = __builtin_shufflevector(high01, high23, 2, 3, 6, 7);
      for (int i = 0; i < 4; ++i) std::memcpy(panel + (k + i) * width + n, &out[i], sizeof(Vec));
    }
    for (; k < depth; ++k) {
      for (int i = 0; i < 4; ++i) panel[k * width + n + i] = *b.at(k, n + i);
    }
  }
  for (; n < width; ++n) {
    for (std::int64_t k = 0; k < depth; ++k)
      panel[k * width + n] = n < columns ? *b.at(k, n) : 0.0f;
  }
}

template <int kBytes, int kRows>
TANDEM_ALWAYS_INLINE void multiply(std::int64_t M, std::int64_t N, std::int64_t K, const Matrix& a,
                                   const Matrix& b, const Destination& c) {
  constexpr std::int64_t kWidth = 2 * Vector<kBytes>::kLanes;
  static_assert(kWidth <= kLargestPanelWidth);
  alignas(64) float panel[kPanelDepth * kWidth];
  for (std::int64_t n = 0; n < N; n += kWidth) {
    const std::int64_t columns = std::min(kWidth, N - n);
    for (std::int64_t k = 0; k < K; k += kPanelDepth) {
      const std::int64_t depth = std::min(kPanelDepth, K - k);
      const float* b_panel = b.at(k, n);
      std::int64_t b_stride = b.row_stride;
      // why: a small B is in the first cache already, and few rows do not repay a copy.
      const bool in_place = b.column_stride == 1 && columns == kWidth &&
                            (M <= 2 * kRows || b.row_stride * depth <= 16384);
      if (!in_place) {
        pack_panel({b_panel, b.row_stride, b.column_stride}, depth, columns, kWidth, panel);
        b_panel = panel;
        b_stride = kWidth;
      }
      const auto tile = [&](std::int64_t m) -> Destination {
        return {c.data + m * c.stride + n, c.stride, c.alpha, c.accumulate || k > 0};
      };
      std::int64_t m = 0;
      for (; m + kRows <= M; m += kRows) {
        const Matrix rows{a.at(m, k), a.row_stride, a.column_stride};
        multiply_tile<kBytes, kRows>(depth, rows, b_panel, b_stride, tile(m), columns);
      }
      for (; m < M; ++m) {
        const Matrix row{a.at(m, k), a.row_stride, a.column_stride};
        multiply_tile<kBytes, 1>(depth, row, b_panel, b_stride, tile(m), columns);
      }
    }
  }
}

#define TANDEM_MULTIPLY_PARAMETERS                                                   \
  (std::int64_t M, std::int64_t N, std::int64_t K, const Matrix& a, const Matrix& b, \
   const Destination& c)

// Rows per tile: as many sums as hide the multiply-add's latency and fit the registers.
static void multiply_baseline TANDEM_MULTIPLY_PARAMETERS { multiply<16, 4>(M, N, K, a, b, c); }
TANDEM_AVX2 static void multiply_avx2 TANDEM_MULTIPLY_PARAMETERS {
  multiply<32, 4>(M, N, K, a, b, c);
}
TANDEM_AVX512 static void multiply_avx512 TANDEM_MULTIPLY_PARAMETERS {
  multiply<64, 8>(M, N, K, a, b, c);
}

#undef TANDEM_MULTIPLY_PARAMETERS

/// Returns the operand's matrix in fp32, converted into `buffer` where it is not fp32 already.
Matrix as_float(const MatmulOperand& operand, DType dtype, std::int64_t rows, std::int64_t columns,
                std::vector<float>& buffer) {
  if (operand.transposed) std::swap(rows, columns);
  const float* data = static_cast<const float*>(operand.data);
  std::int64_t stride = operand.stride;
  if (dtype != DType::kFloat32) {
    buffer.resize(rows * columns);
    rows_to_float({dtype, operand.data, operand.stride}, rows, columns, buffer.data(), columns);
    data = buffer.data();
    stride = columns;
  }
  return operand.transposed ? Matrix{data, 1, stride} : Matrix{data, stride, 1};
}

/// The product of fp64 operands: a plain loop.
void multiply_fp64(const MatmulArgs& args) {
  const auto at = [](const MatmulOperand& x, std::int64_t row, std::int64_t column) {
    const auto* data = static_cast<const double*>(x.data);
    return x.transposed ? data[column * x.stride + row] : data[row * x.stride + column];
  };
  for (std::int64_t m = 0; m < args.M; ++m) {
    double* row = static_cast<double*>(args.c) + m * args.c_stride;
    for (std::int64_t n = 0; n < args.N; ++n) {
      double sum = 0;
      for (std::int64_t k = 0; k < args.K; ++k) sum += at(args.a, m, k) * at(args.b, k, n);
      row[n] = args.alpha * sum + (args.accumulate ? row[n] : 0);
    }
  }
}

}  // namespace

void matmul_builtin(const MatmulArgs& args, Isa isa) {
  if (args.dtype == DType::kFloat64) return multiply_fp64(args);
  thread_local std::vector<float> a_buffer, b_buffer;
  const Matrix a = as_float(args.a, args.dtype, args.M, args.K, a_buffer);
  const Matrix b = as_float(args.b, args.dtype, args.K, args.N, b_buffer);
  const Destination c{static_cast<float*>(args.c), args.c_stride, args.alpha, args.accumulate};
  TANDEM_CALL_FOR_ISA(isa, multiply, args.M, args.N, args.K, a, b, c)
}

}  // namespace tandem::cpu
