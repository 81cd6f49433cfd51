// What is prepared on the device for a walk: the order in which CTAs take sequences of different
// length, or cleared flags.
#pragma once

#include "ops/gla_problem.h"

namespace tandem::cuda::gla {

struct ScheduleParams {
  const std::int32_t* cu_seqlens = nullptr;  // [N+1]
  std::int64_t N = 0;
  std::int64_t T = 0;
  std::int32_t* order = nullptr;    // out [N]: sequences, longest first
  std::uint32_t* ticket = nullptr;  // out: 0
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
