// The summing role of attention_backward_kernel: adds this block's share of dq to the sums in
// memory when it is the block's turn.
#pragma once

#include <cuda/atomic>

#include "cuda/attention/backward_load.cuh"

namespace tandem::cuda::attention {

/// Starts adding (or, of the first block, storing) fp32 values in shared memory to memory.
__device__ inline void start_sum(float* to, const void* from, int bytes, bool first) {
  const std::uint32_t address = cute::cast_smem_ptr_to_uint(from);
  if (first) {
    asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(to),
                 "r"(address), "r"(bytes)
                 : "memory");
  } else {
    asm volatile(
        "cp.reduce.async.bulk.global.shared::cta.bulk_group.add.f32 [%0], [%1], %2;" ::"l"(to),
        "r"(address), "r"(bytes)
        : "memory");
  }
  cute::tma_store_arrive();
}

/// One thread.
template <class Config>
struct BackwardSum {
  const AttentionBackwardParams& params;
  BackwardShared<Config>& shared;

  __device__ void run() const {
    RingPosition<Config::kSumStages> at;
    typename Ring<Config::kItemSlots>::Position item_at;
    for (;; item_at.advance()) {
      shared.item_ring.wait_full(item_at);
      const BackwardItem& item = shared.items[item_at.stage];
      if (item.key_head == BackwardItem::kNone) return;
      add_item(item, at);
      shared.item_ring.empty[item_at.stage].arrive();
    }
  }

  __device__ void add_item(const BackwardItem& item, RingPosition<Config::kSumStages>& at) const {
    for (BackwardStep step(item); step.exists(item); step.advance(item)) {
      const std::int64_t tile =
          std::int64_t{step.head} * params.query_tiles + item.tiles_before + step.tile;
      const std::uint32_t turn = item.block - SeenBlocks(item.span, Config::kTile, step.tile).first;
      const ::cuda::atomic_ref<std::uint32_t, ::cuda::thread_scope_device> turns(
          params.turns[tile]);
      shared.sums.wait_full(at);
      while (turns.load(::cuda::memory_order_acquire) != turn) {
      }
      // why the fences: sums are read and written by the copy engine, turns by threads.
      asm volatile("fence.proxy.async;" ::: "memory");
#pragma unroll 1
      for (int part = 0; part < Config::kSumParts; ++part, at.advance()) {
        shared.sums.wait_full(at);
        start_sum(params.dq_sums + tile * (Config::kSumBytes / 4) + part * (Config::kPartBytes / 4),
                  shared.dq[at.stage], Config::kPartBytes, turn == 0);
        cute::tma_store_wait<0>();  // has read
        shared.sums.empty[at.stage].arrive();
      }
      asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");  // has written
      asm volatile("fence.proxy.async;" ::: "memory");
      turns.store(turn + 1, ::cuda::memory_order_release);
    }
  }
};

}  // namespace tandem::cuda::attention
