// TMA copies between [B,T,heads,dim] tensors and panels. The maps come from plan_tile
// (cuda/runtime/tensor_map.h): coordinates are (column, head, time, batch), rows past T and columns
// past the dim read as zero and are not written.
#pragma once

#include <cuda.h>

#include <cute/arch/copy_sm90_desc.hpp>
#include <cute/arch/copy_sm90_tma.hpp>

#include "cuda/parts/barrier.cuh"

namespace tandem::cuda {

struct TileCoordinate {
  int column;
  int head;
  int time;
  int batch;
};

__device__ inline void prefetch_tensor_map(const CUtensorMap& map) {
  cute::prefetch_tma_descriptor(reinterpret_cast<const cute::TmaDescriptor*>(&map));
}

/// Starts loading a panel, whose bytes complete `full`. One thread.
__device__ inline void load_panel(const CUtensorMap& map, Barrier& full, void* panel,
                                  TileCoordinate at) {
  // why not evict-first, though tiles are read once: that hint cost 9 % at 128 columns on an H200.
  constexpr auto kHint = static_cast<std::uint64_t>(cute::TMA::CacheHintSm90::EVICT_NORMAL);
  cute::SM90_TMA_LOAD_4D::copy(&map, &full.word, kHint, panel, at.column, at.head, at.time,
                               at.batch);
}

/// Asks for `bytes` of memory, both multiples of 16, to be brought into the L2 cache. Allowed while
/// what writes them may still run: all that read and write memory meet in that cache.
__device__ inline void prefetch_bytes(const char* data, int bytes) {
  asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(data), "r"(bytes) : "memory");
}

/// Starts storing a panel. One thread, after a barrier that follows every writer's
/// fence_shared_for_async_proxy().
__device__ inline void store_panel(const CUtensorMap& map, const void* panel, TileCoordinate at) {
  cute::SM90_TMA_STORE_4D::copy(&map, panel, at.column, at.head, at.time, at.batch);
  cute::tma_store_arrive();
}

/// Waits until this thread's stores have read their shared memory.
__device__ inline void wait_stores_read() { cute::tma_store_wait<0>(); }

}  // namespace tandem::cuda
