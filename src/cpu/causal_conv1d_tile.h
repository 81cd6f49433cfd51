// Leaves of a causal convolution on the CPU: what happens inside a tile of at most 64 tokens and
// 128 channels, each channel on its own.
//
// A tile is [rows][kConvColumns] values of which the first `columns` of each row count. Loops are
// vectorised over the channels.
#pragma once

namespace tandem::cpu {

constexpr int kConvRows = 64;
constexpr int kConvColumns = 128;

/// Tokens and channels of a tile, and the taps of its convolution.
struct ConvShape {
  int rows;
  int columns;
  int W;
};

// Real is float or double; weights are W lines, `stride` apart.

/// z = bias + the sum over w of weight_w inputs of w rows on: inputs have W - 1 rows more.
template <typename Real>
void convolve(ConvShape shape, const Real* inputs, const Real* weight, int stride, const Real* bias,
              Real* z);

/// z = silu(z).
template <typename Real>
void apply_silu(ConvShape shape, Real* z);

/// d *= silu'(z).
template <typename Real>
void differentiate_silu(ConvShape shape, const Real* z, Real* d);

/// dx += the sum over w of weight_w dz of W - 1 - w rows on: dz has W - 1 rows more.
template <typename Real>
void correlate(ConvShape shape, const Real* dz, const Real* weight, int stride, Real* dx);

/// sums = the sums over the rows of inputs of w rows on times dz, a line for each w, and of dz.
template <typename Real>
void sum_taps(ConvShape shape, const Real* inputs, const Real* dz, Real* sums, int stride);

}  // namespace tandem::cpu
