// What the CTAs of a cluster do together: wait, and read or write each other's shared memory.
#pragma once

#include <cstdint>
#include <cute/arch/util.hpp>

#include "cuda/parts/barrier.cuh"

namespace tandem::cuda {

/// Waits for all threads of the cluster, and sees what they have written.
__device__ inline void sync_cluster() {
  __cluster_barrier_arrive();
  __cluster_barrier_wait();
}

/// The same where nothing that they have written is to be seen: without the fence, which waits for
/// a thread's stores to memory.
__device__ inline void sync_cluster_relaxed() {
  __cluster_barrier_arrive_relaxed();
  __cluster_barrier_wait();
}

/// The address of the same place in the shared memory of a CTA of the cluster.
__device__ inline std::uint32_t address_in_cluster(const void* here, int rank) {
  std::uint32_t address;
  asm("mapa.shared::cluster.u32 %0, %1, %2;"
      : "=r"(address)
      : "r"(cute::cast_smem_ptr_to_uint(here)), "r"(rank));
  return address;
}
/// Writes four floats to such an address.
__device__ inline void store_to_cluster(std::uint32_t address, float4 value) {
  asm volatile("st.shared::cluster.v4.f32 [%0], {%1, %2, %3, %4};" ::"r"(address), "f"(value.x),
               "f"(value.y), "f"(value.z), "f"(value.w)
               : "memory");
}

/// Writes four floats where `to` is in the shared memory of a CTA of the cluster; they complete its
/// `full`.
__device__ inline void send_to_cluster(const float4* to, const Barrier& full, int rank,
                                       const float (&values)[4]) {
  asm volatile(
      "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v4.f32 [%0], {%1, %2, %3, %4}, "
      "[%5];" ::"r"(address_in_cluster(to, rank)),
      "f"(values[0]), "f"(values[1]), "f"(values[2]), "f"(values[3]),
      "r"(address_in_cluster(&full, rank))
      : "memory");
}

}  // namespace tandem::cuda
