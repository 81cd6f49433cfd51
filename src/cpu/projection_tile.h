// Element-wise loops of projection on the CPU, over tiles in fp32 or fp64.
#pragma once

#include <cstdint>

#include "tandem/ops/projection.h"

namespace tandem::cpu {

/// An activation with its constants, as ProjectionForwardSegment has them.
template <typename Real>
struct ActivationOf {
  Activation kind;
  Real divisor, min, max;
};

/// z = f(z), slope = df/dz; of the activations that take each value alone.
template <typename Real>
void activate(const ActivationOf<Real>& activation, std::int64_t count, Real* z, Real* slope);

// Tiles have no gaps between rows or heads.

/// Adds the bias [columns] to each row.
template <typename Real>
void add_bias(std::int64_t rows, std::int64_t columns, const Real* bias, Real* z);

/// Divides each head by its norm; inverse_norm [heads]. `width` is a multiple of 8.
template <typename Real>
void normalize_heads(std::int64_t heads, std::int64_t width, Real* z, Real* inverse_norm);

/// d *= slope.
template <typename Real>
void multiply_by_slope(std::int64_t count, const Real* slope, Real* d);

/// d = inverse_norm (d - out <d, out>) for each head, of what normalize_heads gave.
template <typename Real>
void differentiate_heads(std::int64_t heads, std::int64_t width, const Real* out,
                         const Real* inverse_norm, Real* d);

/// Adds each row in turn to the sum [columns].
template <typename Real>
void add_rows(std::int64_t rows, std::int64_t columns, const Real* values, Real* sum);

}  // namespace tandem::cpu
