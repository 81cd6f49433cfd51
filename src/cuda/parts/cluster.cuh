// What the CTAs of a cluster do together: wait, and read or write each other's shared memory.
#pragma once

#include <cstdint>
#include <cute/arch/util.hpp>

namespace tandem::cuda {

/// Waits for all threads of the cluster, and sees what they have written.
__device__ inline void sync_cluster() {
  __cluster_barrier_arrive();
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
/// Reads four floats at the same place there.
__device__ inline float4 load_from_cluster(const void* here, int rank) {
  float4 value;
  asm volatile("ld.shared::cluster.v4.f32 {%0, %1, %2, %3}, [%4];"
               : "=f"(value.x), "=f"(value.y), "=f"(value.z), "=f"(value.w)
               : "r"(address_in_cluster(here, rank)));
  return value;
}
/// Writes four floats to such an address.
__device__ inline void store_to_cluster(std::uint32_t address, float4 value) {
  asm volatile("st.shared::cluster.v4.f32 [%0], {%1, %2, %3, %4};" ::"r"(address), "f"(value.x),
               "f"(value.y), "f"(value.z), "f"(value.w)
               : "memory");
}

}  // namespace tandem::cuda
