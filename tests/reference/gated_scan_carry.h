// The fp64 definitions of gated_scan_decay, gated_scan_carry and its backward: one channel of one
// sequence, one token at a time. Tests trust them; nothing else should use them.
#pragma once

#include <cstdint>
#include <vector>

#include "ops/gated_scan_carry_problem.h"
#include "reference/gated_scan.h"

namespace tandem::reference {

inline std::vector<double> decays_of(const ScanDecays& p, std::int64_t b, int d) {
  std::vector<double> decays = read_channel(p.decay_dtype, p.decay, span_of(p, b), d);
  for (double& a : decays) a = p.log_decay ? std::exp(a) : a;
  return decays;
}

struct DecayProducts {
  std::vector<double> before;  // of each chunk
  double total = 1;
};

inline DecayProducts gated_scan_decay_one(const GatedScanDecayProblem& p, std::int64_t b, int d) {
  DecayProducts products;
  std::int64_t t = 0;
  for (const double a : decays_of(p, b, d)) {
    if (t++ % kGatedScanChunk == 0) products.before.push_back(products.total);
    products.total = a == 0 ? 0 : a * products.total;  // 0 forgets exactly
  }
  return products;
}

/// Calls visit(t, factor) at every token, out's factor of `carry`; each chunk begins with what
/// `before`, as it is given, leaves of it.
template <class Problem, class Visit>
void for_each_factor(const Problem& p, std::int64_t b, int d, double carry, const Visit& visit) {
  const std::vector<double> decays = decays_of(p, b, d);
  std::vector<double> gate;
  if (p.gate.data) gate = read_channel(p.dtype, p.gate, span_of(p, b), d);
  double state = 0;
  for (std::int64_t t = 0; t < p.T; ++t) {
    if (t % kGatedScanChunk == 0) {
      const std::int64_t line = b * p.chunks() + t / kGatedScanChunk;
      const double before = real(p.dtype, p.before, line * p.D + d);
      state = before == 0 ? 0 : before * carry;
    }
    state = decays[t] == 0 ? 0 : decays[t] * state;
    visit(t, (gate.empty() ? 1 : silu(gate[t])) * state);
  }
}

/// Returns out.
inline std::vector<double> gated_scan_carry_one(const GatedScanCarryProblem& p, std::int64_t b,
                                                int d) {
  std::vector<double> out = read_channel(p.dtype, p.out, span_of(p, b), d);
  for_each_factor(p, b, d, real(p.dtype, p.carry, b * p.D + d),
                  [&](std::int64_t t, double added) { out[t] += added; });
  return out;
}

struct CarryGradient {
  std::vector<double> sums;  // of each chunk
  double d_carry = 0;
};

inline CarryGradient gated_scan_carry_backward_one(const GatedScanCarryBackwardProblem& p,
                                                   std::int64_t b, int d) {
  const std::vector<double> d_out = read_channel(p.dtype, p.d_out, span_of(p, b), d);
  CarryGradient gradient{std::vector<double>(p.chunks())};
  for_each_factor(p, b, d, 1, [&](std::int64_t t, double factor) {
    gradient.sums[t / kGatedScanChunk] += factor * d_out[t];
    gradient.d_carry += factor * d_out[t];
  });
  return gradient;
}

}  // namespace tandem::reference
