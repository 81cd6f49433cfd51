// How a backward that makes all gradients at once cuts sequences.
#pragma once

#include <cstddef>

namespace tandem::cuda::gla {

struct SegmentPlan {
  int chunks = 0;          // of a sequence
  int segments = 1;        // per sequence
  int segment_chunks = 0;  // of every segment but the last
  // Offsets into the workspace, where there are several.
  std::size_t entry_states = 0;     // fp32 [B,H,segments,K,V]
  std::size_t entry_gradients = 0;  // as these
  std::size_t log_decay = 0;        // fp32 [B,H,segments], of whole segments
};

}  // namespace tandem::cuda::gla
