// Outputs against the fp64 definition: relative RMS errors, over all heads and the worst one.
#pragma once

#include <cstdint>
#include <vector>

#include "cli/calls/operation.h"

namespace tandem::tools {

/// Sums of squares of a difference and of what is right; NaN in a value stays.
struct Squares {
  double wrong = 0, right = 0;
  double fourth = 0;  // powers of what is right
  std::int64_t count = 0;

  void add(double value, double expected);
  /// Returns the root of wrong / scale. Where the definition is 0 throughout, anything else is
  /// infinitely wrong.
  double relative(double scale) const;
};

/// Judges one output over all heads, and its worst head. A head is measured by its own size or, if
/// that is smaller, by the size of an average head: a single q.k that cancels to nearly 0 is no
/// error.
OutputError judge(const char* output, const std::vector<Squares>& heads, double limit);

/// Limit on the relative error of activations of a dtype, and of sums of their products.
double error_limit(DType dtype);

/// Limit on a baseline's error where Tandem's is `limit`: it rounds every intermediate to the
/// call's 16 bits, also before an fp32 output.
double baseline_limit(double limit, DType dtype);

/// Whether a provider's error is small enough to time it; a null `baseline` is Tandem.
bool is_accepted(const OutputError& error, const Baseline* baseline, DType dtype);

}  // namespace tandem::tools
