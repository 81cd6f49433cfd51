// The fp64 definition of gla_step: one token of one batch and head, as plain as the formula.
#pragma once

#include <cmath>
#include <cstdint>
#include <vector>

#include "reference/gla.h"

namespace tandem::reference {

/// Computes o [V] and the new state [K,V] of one batch and head; the problem's state is only read.
inline void gla_step_one(const GlaStepProblem& p, std::int64_t b, int h, double* o, double* state) {
  const int hq = h / (p.H / p.HQ);
  const auto at = [&](const StridedTensor& x, int head, int i) {
    return element(p.dtype, x.data, b * x.batch_stride + head * x.head_stride + i);
  };
  const DecayTensor& g = p.log_decay;
  const double decay =
      g.data ? std::exp(real(p.dtype, g.data, b * g.batch_stride + h * g.head_stride)) : 1.0;
  const StateTensor& S = p.state;
  for (int j = 0; j < p.V; ++j) o[j] = 0.0;
  for (int i = 0; i < p.K; ++i) {
    for (int j = 0; j < p.V; ++j) {
      const std::int64_t index = b * S.batch_stride + h * S.head_stride + i * S.key_stride + j;
      // A decay of 0 forgets exactly, whatever the state held.
      const double kept = decay == 0.0 ? 0.0 : decay * element(p.state_dtype, S.data, index);
      state[i * p.V + j] = kept + at(p.k, hq, i) * at(p.v, h, j);
      o[j] += scale_of<double>(p) * at(p.q, hq, i) * state[i * p.V + j];
    }
  }
}

}  // namespace tandem::reference
