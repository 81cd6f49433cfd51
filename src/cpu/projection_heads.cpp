#include "cpu/projection_heads.h"

#include <algorithm>
#include <cmath>

#include "cpu/elementwise.h"
#include "cpu/isa.h"

namespace tandem::cpu {
namespace {

/// The table's row for a row of a call.
std::int64_t position_of(const Rope& rope, std::int64_t row) {
  std::int64_t position = row;
  if (rope.row_positions) {
    position = rope.row_positions[row];
  } else if (rope.cu_seqlens) {
    const std::int32_t* end = rope.cu_seqlens + rope.N + 1;
    const std::int32_t* next = std::upper_bound(rope.cu_seqlens, end, row);
    if (next != rope.cu_seqlens) position = row - next[-1];
  } else if (rope.length > 0) {
    position = row % rope.length;
  }
  return std::clamp<std::int64_t>(position, 0, rope.positions - 1);
}

// why a function per loop: __restrict of parameters outlives inlining.
#define TANDEM_LOOP        \
  template <typename Real> \
  TANDEM_ALWAYS_INLINE void

TANDEM_LOOP rotate_half_loop(std::int64_t pairs, const Real* __restrict cos,
                             const Real* __restrict sin, Real sign, Real* __restrict first,
                             Real* __restrict second) {
  for (std::int64_t j = 0; j < pairs; ++j) {
    const Real a = first[j], b = second[j], s = sign * sin[j];
    first[j] = a * cos[j] - b * s;
    second[j] = b * cos[j] + a * s;
  }
}

TANDEM_LOOP rotate_pairs_loop(std::int64_t pairs, const Real* __restrict cos,
                              const Real* __restrict sin, Real sign, Real* __restrict z) {
  for (std::int64_t j = 0; j < pairs; ++j) {
    const Real a = z[2 * j], b = z[2 * j + 1], s = sign * sin[j];
    z[2 * j] = a * cos[j] - b * s;
    z[2 * j + 1] = b * cos[j] + a * s;
  }
}

TANDEM_LOOP rotate_loop(bool interleaved, std::int64_t heads, std::int64_t width,
                        std::int64_t pairs, const Real* cos, const Real* sin, Real sign, Real* z) {
  for (std::int64_t i = 0; i < heads; ++i) {
    Real* head = z + i * width;
    if (interleaved) {
      rotate_pairs_loop(pairs, cos, sin, sign, head);
    } else {
      rotate_half_loop(pairs, cos, sin, sign, head, head + pairs);
    }
  }
}

constexpr int kLanes = 8;  // a sum of one accumulator is not vectorised; heads are whole lanes

template <typename Real>
TANDEM_ALWAYS_INLINE Real dot(std::int64_t width, const Real* a, const Real* b) {
  Real lanes[kLanes] = {};
  for (std::int64_t j = 0; j < width; j += kLanes) {
    for (int lane = 0; lane < kLanes; ++lane) lanes[lane] += a[j + lane] * b[j + lane];
  }
  Real sum = 0;
  for (const Real lane : lanes) sum += lane;
  return sum;
}

TANDEM_LOOP normalize_loop(std::int64_t heads, std::int64_t width, const Real* __restrict weight,
                           Real eps, Real* __restrict z, Real* __restrict rstd) {
  for (std::int64_t i = 0; i < heads; ++i) {
    Real* head = z + i * width;
    rstd[i] = 1 / std::sqrt(dot(width, head, head) / static_cast<Real>(width) + eps);
    for (std::int64_t j = 0; j < width; ++j) head[j] *= rstd[i] * weight[j];
  }
}

/// Replaces the gradient by the normalised head by that by z.
TANDEM_LOOP gradient_loop(std::int64_t width, const Real* __restrict z,
                          const Real* __restrict weight, Real rstd, Real* __restrict d) {
  for (std::int64_t j = 0; j < width; ++j) d[j] *= weight[j];
  const Real mean = dot(width, d, z) * rstd / static_cast<Real>(width);
  for (std::int64_t j = 0; j < width; ++j) d[j] = rstd * (d[j] - z[j] * rstd * mean);
}

TANDEM_LOOP add_products_loop(std::int64_t width, const Real* __restrict d,
                              const Real* __restrict z, Real rstd, Real* __restrict sum) {
  for (std::int64_t j = 0; j < width; ++j) sum[j] += d[j] * z[j] * rstd;
}

TANDEM_LOOP differentiate_loop(std::int64_t heads, std::int64_t width, const Real* z,
                               const Real* rstd, const Real* weight, Real* d, Real* d_weight) {
  for (std::int64_t i = 0; i < heads; ++i) {
    const Real* head = z + i * width;
    Real* gradient = d + i * width;
    if (d_weight) add_products_loop(width, gradient, head, rstd[i], d_weight);
    gradient_loop(width, head, weight, rstd[i], gradient);
  }
}

#undef TANDEM_LOOP

TANDEM_FOR_EACH_ISA(rotate,
                    (bool interleaved, std::int64_t heads, std::int64_t width, std::int64_t pairs,
                     const float* cos, const float* sin, float sign, float* z),
                    rotate_loop(interleaved, heads, width, pairs, cos, sin, sign, z))
TANDEM_FOR_EACH_ISA(normalize,
                    (std::int64_t heads, std::int64_t width, const float* weight, float eps,
                     float* z, float* rstd),
                    normalize_loop(heads, width, weight, eps, z, rstd))
TANDEM_FOR_EACH_ISA(differentiate,
                    (std::int64_t heads, std::int64_t width, const float* z, const float* rstd,
                     const float* weight, float* d, float* d_weight),
                    differentiate_loop(heads, width, z, rstd, weight, d, d_weight))

void rotate_row(bool interleaved, std::int64_t heads, std::int64_t width, std::int64_t pairs,
                const float* cos, const float* sin, float sign, float* z) {
  TANDEM_CALL_FOR_ISA(isa(), rotate, interleaved, heads, width, pairs, cos, sin, sign, z)
}
void rotate_row(bool interleaved, std::int64_t heads, std::int64_t width, std::int64_t pairs,
                const double* cos, const double* sin, double sign, double* z) {
  rotate_loop(interleaved, heads, width, pairs, cos, sin, sign, z);
}

}  // namespace

template <typename Real>
void load_rope(const Rope& rope, std::int64_t row, std::int64_t rows, Real* cos, Real* sin) {
  const std::int64_t pairs = rope.width / 2;
  const auto load = [&](const MatrixTensor& table, std::int64_t position, Real* to) {
    rows_to_float({rope.dtype, element_at(rope.dtype, table.data, position * table.row_stride), 0},
                  1, pairs, to, 0);
  };
  for (std::int64_t i = 0; i < rows; ++i) {
    const std::int64_t position = position_of(rope, row + i);
    load(rope.cos, position, cos + i * pairs);
    load(rope.sin, position, sin + i * pairs);
  }
}
template void load_rope(const Rope&, std::int64_t, std::int64_t, float*, float*);
template void load_rope(const Rope&, std::int64_t, std::int64_t, double*, double*);

template <typename Real>
void rotate_heads(const Rope& rope, std::int64_t rows, std::int64_t heads, std::int64_t width,
                  const Real* cos, const Real* sin, bool back, Real* z) {
  const std::int64_t pairs = rope.width / 2;
  for (std::int64_t i = 0; i < rows; ++i) {
    rotate_row(rope.interleaved, heads, width, pairs, cos + i * pairs, sin + i * pairs,
               Real(back ? -1 : 1), z + i * heads * width);
  }
}
template void rotate_heads(const Rope&, std::int64_t, std::int64_t, std::int64_t, const float*,
                           const float*, bool, float*);
template void rotate_heads(const Rope&, std::int64_t, std::int64_t, std::int64_t, const double*,
                           const double*, bool, double*);

template <>
void rms_normalize_heads(std::int64_t heads, std::int64_t width, const float* weight, float eps,
                         float* z, float* rstd) {
  TANDEM_CALL_FOR_ISA(isa(), normalize, heads, width, weight, eps, z, rstd)
}
template <>
void rms_normalize_heads(std::int64_t heads, std::int64_t width, const double* weight, double eps,
                         double* z, double* rstd) {
  normalize_loop(heads, width, weight, eps, z, rstd);
}

template <>
void differentiate_rms_heads(std::int64_t heads, std::int64_t width, const float* z,
                             const float* rstd, const float* weight, float* d, float* d_weight) {
  TANDEM_CALL_FOR_ISA(isa(), differentiate, heads, width, z, rstd, weight, d, d_weight)
}
template <>
void differentiate_rms_heads(std::int64_t heads, std::int64_t width, const double* z,
                             const double* rstd, const double* weight, double* d,
                             double* d_weight) {
  differentiate_loop(heads, width, z, rstd, weight, d, d_weight);
}

}  // namespace tandem::cpu
