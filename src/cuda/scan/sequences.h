// The sequences that a scan's tokens belong to.
#pragma once

#include <cstdint>

namespace tandem::cuda {

/// Each batch row is one, or they are the packed ones of cu_seqlens.
struct ScanSequences {
  const std::int32_t* cu_seqlens;  // (N + 1), or null
  int N;
  int T;
};

}  // namespace tandem::cuda
