// What follows a product in each head, on the CPU: a weighted RMS norm and a rotation, over tiles
// in fp32 or fp64. Tiles have no gaps between rows or heads; a head's width is a multiple of 8.
#pragma once

#include <cstdint>

#include "ops/rope_problem.h"

namespace tandem::cpu {

/// Loads the tables' rows for rows [row, row + rows) of a call: [rows,rope.width/2] each.
template <typename Real>
void load_rope(const Rope& rope, std::int64_t row, std::int64_t rows, Real* cos, Real* sin);

/// Rotates each head by its row of cos and sin, or back.
template <typename Real>
void rotate_heads(const Rope& rope, std::int64_t rows, std::int64_t heads, std::int64_t width,
                  const Real* cos, const Real* sin, bool back, Real* z);

/// z *= rstd weight for each head; rstd [heads].
template <typename Real>
void rms_normalize_heads(std::int64_t heads, std::int64_t width, const Real* weight, Real eps,
                         Real* z, Real* rstd);

/// d = rstd (d weight - m mean of (d weight m)) for each head, with m = z rstd; adds d m to
/// d_weight [width] unless that is null.
template <typename Real>
void differentiate_rms_heads(std::int64_t heads, std::int64_t width, const Real* z,
                             const Real* rstd, const Real* weight, Real* d, Real* d_weight);

}  // namespace tandem::cpu
