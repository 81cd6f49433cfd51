// The sequences that a scan's tokens belong to.
#pragma once

#include <cstdint>

namespace tandem::cuda::scan {

/// Sequences of a call: each batch row is one, or cu_seqlens lists packed ones.
struct ScanSequences {
  const std::int32_t* cu_seqlens;  // (N + 1), or null
  int N;
  int T;
};

}  // namespace tandem::cuda::scan
