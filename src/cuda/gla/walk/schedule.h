// What is prepared on the device for a walk over packed sequences: the order in which CTAs take
// them, or the segments that they are cut into.
#pragma once

#include "cuda/gla/walk/params.h"
#include "ops/gla_problem.h"

namespace tandem::cuda::gla {

struct ScheduleParams {
  const std::int32_t* cu_seqlens = nullptr;  // [N+1]
  std::int64_t N = 0;
  std::int64_t T = 0;
  std::int32_t* order = nullptr;    // out [N]: sequences, longest first
  std::uint32_t* ticket = nullptr;  // out: 0
  // Or, not null: out [most_pieces], segments of `piece_chunks` chunks at most, then none.
  WalkPiece* pieces = nullptr;
  int most_pieces = 0;
  int piece_chunks = 1;
  int H = 0;
  // Outputs to clear at tokens outside every sequence: 16-bit elements [1,T,H,columns], or null.
  struct Output {
    StridedTensor tensor;
    int columns = 0;
  };
  Output outputs[2];
};

void launch_schedule(const ScheduleParams& params, void* stream);

}  // namespace tandem::cuda::gla
