// The logistic function and what follows from it, for loops that vectorise.
#pragma once

#include "cpu/exp2.h"
#include "cpu/isa.h"

namespace tandem::cpu {

/// What sigmoid and its relatives are made of, without cancellation at either end.
template <typename Real>
struct Logistic {
  Real e, r;  // exp(-|z|) and 1 / (1 + e)
  bool positive;

  explicit TANDEM_ALWAYS_INLINE Logistic(Real z)
      : e(exp(z < 0 ? z : -z)), r(1 / (1 + e)), positive(z >= 0) {}

  TANDEM_ALWAYS_INLINE Real sigmoid() const { return positive ? r : e * r; }
  TANDEM_ALWAYS_INLINE Real one_less_sigmoid() const { return positive ? e * r : r; }
  TANDEM_ALWAYS_INLINE Real slope() const { return e * r * r; }
};

}  // namespace tandem::cpu
