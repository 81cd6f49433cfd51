// The fp64 definitions of gated_scan_decay and gated_scan_carry: one channel of one sequence, one
// token at a time. Tests trust them; nothing else should use them.
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

/// Returns out; each chunk begins with what `before`, as it is given, leaves of the carry.
inline std::vector<double> gated_scan_carry_one(const GatedScanCarryProblem& p, std::int64_t b,
                                                int d) {
  const Span span = span_of(p, b);
  const std::vector<double> decays = decays_of(p, b, d);
  std::vector<double> out = read_channel(p.dtype, p.out, span, d), gate;
  if (p.gate.data) gate = read_channel(p.dtype, p.gate, span, d);
  const double carry = real(p.dtype, p.carry, b * p.D + d);
  double state = 0;
  for (std::int64_t t = 0; t < p.T; ++t) {
    if (t % kGatedScanChunk == 0) {
      const std::int64_t line = b * p.chunks() + t / kGatedScanChunk;
      const double before = real(p.dtype, p.before, line * p.D + d);
      state = before == 0 ? 0 : before * carry;
    }
    state = decays[t] == 0 ? 0 : decays[t] * state;
    out[t] += (gate.empty() ? 1 : silu(gate[t])) * state;
  }
  return out;
}

}  // namespace tandem::reference
