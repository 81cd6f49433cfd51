// One mbarrier in shared memory: arrivals and transaction bytes complete its phases in turn.
#pragma once

#include <cutlass/arch/barrier.h>

#include <cstdint>

namespace tandem::cuda {

struct Barrier {
  std::uint64_t word;

  /// Initialises the barrier. One thread, before fence_barriers_initialised() and a CTA-wide
  /// barrier. Each thread arrives by itself: one arrival per warp after __syncwarp is no faster,
  /// and racecheck cannot follow it.
  __device__ void init(std::uint32_t arrivals) {
    cutlass::arch::ClusterBarrier::init(&word, arrivals);
  }
  __device__ void arrive() { cutlass::arch::ClusterBarrier::arrive(&word); }
  /// Arrives, and keeps the phase open until copies have delivered `bytes`.
  __device__ void arrive_and_expect(std::uint32_t bytes) {
    cutlass::arch::ClusterTransactionBarrier::arrive_and_expect_tx(&word, bytes);
  }
  /// Returns once the phase of this parity has completed.
  __device__ void wait(std::uint32_t parity) const {
    cutlass::arch::ClusterBarrier::wait(&word, parity);
  }
};

/// Makes initialised barriers visible to the copy engine.
__device__ inline void fence_barriers_initialised() { cutlass::arch::fence_barrier_init(); }

/// Makes this thread's ordinary shared-memory stores visible to wgmma and the copy engine. Every
/// writing thread calls it before the barrier that publishes the data.
__device__ inline void fence_shared_for_async_proxy() { cutlass::arch::fence_view_async_shared(); }

/// Waits for the 128 threads of one warpgroup; `id` is the warpgroup's index in the CTA.
__device__ inline void sync_warpgroup(int id) { cutlass::arch::NamedBarrier::sync(128, id); }

}  // namespace tandem::cuda
