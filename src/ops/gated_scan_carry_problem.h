// What the kernels of gated_scan_decay, gated_scan_carry and its backward are called with:
// arguments after every check.
#pragma once

#include <cstdint>

#include "ops/gated_scan_problem.h"
#include "tandem/ops/gated_scan.h"

namespace tandem {

/// The decays of sequences in chunks; without x, initial_state and cu_seqlens.
struct ScanDecays : ScanRecurrence {
  constexpr std::int64_t chunks() const { return (T + kGatedScanChunk - 1) / kGatedScanChunk; }
};

/// GatedScanDecayArgs after every check. dtype is the decays'.
struct GatedScanDecayProblem : ScanDecays {
  float* before = nullptr;  // [B,chunks,D]
  float* total = nullptr;   // [B,D]
};

/// GatedScanCarryArgs after every check.
struct GatedScanCarryProblem : ScanDecays {
  TokenTensor out;
  const float* before = nullptr;  // [B,chunks,D]
  const float* carry = nullptr;   // [B,D]
};

/// GatedScanCarryBackwardArgs after every check.
struct GatedScanCarryBackwardProblem : ScanDecays {
  TokenTensor d_out;
  const float* before = nullptr;  // [B,chunks,D]
  float* sums = nullptr;          // [B,chunks,D]
  float* d_carry = nullptr;       // [B,D]
};

}  // namespace tandem
