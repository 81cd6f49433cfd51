// A ring of shared-memory buffers between producers and consumers: per stage a `full` and an
// `empty` barrier, and a position that each side advances by itself.
//
//   producer                          consumer
//   wait_empty(p); write stage p;     wait_full(c); read stage c;
//   arrive on full(p); p.advance()    arrive on empty(c); c.advance()
#pragma once

#include "cuda/parts/barrier.cuh"

namespace tandem::cuda {

template <int kStages>
struct RingPosition {
  int stage = 0;
  std::uint32_t parity = 0;

  __device__ void advance() {
    if (++stage == kStages) {
      stage = 0;
      parity ^= 1;
    }
  }
  __device__ void advance(int count) {
    stage += count;
    parity ^= stage / kStages & 1;
    stage %= kStages;
  }
};

template <int kStages>
struct Ring {
  using Position = RingPosition<kStages>;

  Barrier full[kStages];
  Barrier empty[kStages];

  /// Initialises all barriers; arrivals are counted per stage and turn. One thread.
  __device__ void init(std::uint32_t full_arrivals, std::uint32_t empty_arrivals) {
    for (int stage = 0; stage < kStages; ++stage) {
      full[stage].init(full_arrivals);
      empty[stage].init(empty_arrivals);
    }
  }
  __device__ void wait_full(Position position) const { full[position.stage].wait(position.parity); }
  /// Waits until a stage is empty; returns at once in the first turn, since the phase before a
  /// fresh barrier's first counts as completed.
  __device__ void wait_empty(Position position) const {
    empty[position.stage].wait(position.parity ^ 1);
  }
};

}  // namespace tandem::cuda
