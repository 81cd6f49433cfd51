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

/// kSumThreads threads, that take the steps in turn: one alone would be busy longer than a step
/// takes, mostly waiting for memory. A step's thread looks at its buffer once the step before has
/// had its own: a buffer's barrier tells two phases apart, and where a turn is late a thread would
/// get two ahead of it.
template <class Config>
struct BackwardSum {
  const AttentionBackwardParams& params;
  BackwardShared<Config>& shared;
  const unsigned thread;

  __device__ void run() const {
    unsigned count = 0;  // of steps
    for (unsigned items = 0;; ++items) {
      const auto at = ring_position<Config::kItemSlots>(items);
      shared.item_ring.wait_full(at);
      const BackwardItem& item = shared.items[at.stage];
      if (item.key_head == BackwardItem::kNone) return;
      for (BackwardStep step(item); step.exists(item); ++count) {
        if (count % Config::kSumThreads == thread) add(item, step, count);
        step.advance(item, params.head_by_head);
      }
      shared.item_ring.empty[at.stage].arrive();
    }
  }

  __device__ void add(const BackwardItem& item, BackwardStep step, unsigned count) const {
    const std::int64_t tile =
        std::int64_t{step.head} * params.query_tiles + item.tiles_before + step.tile;
    const std::uint32_t turn = item.block - SeenBlocks(item.span, Config::kTile, step.tile).first;
    const ::cuda::atomic_ref<std::uint32_t, ::cuda::thread_scope_device> turns(params.turns[tile]);
    float* to = params.dq_sums + tile * (Config::kSumBytes / 4);
    const auto at = ring_position<Config::kSumStages>(count);
    if (count > 0) shared.begun[thread].wait((count - 1) / Config::kSumThreads & 1);
    shared.sums.wait_full(at);
    shared.begun[(count + 1) % Config::kSumThreads].arrive();
    while (turns.load(::cuda::memory_order_acquire) != turn) {
    }
    // why the fences: sums are read and written by the copy engine, turns by threads.
    asm volatile("fence.proxy.async;" ::: "memory");
    start_sum(to, shared.dq[at.stage], Config::kSumBytes, turn == 0);
    cute::tma_store_wait<0>();  // has read
    shared.sums.empty[at.stage].arrive();
    asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");  // has written
    asm volatile("fence.proxy.async;" ::: "memory");
    turns.store(turn + 1, ::cuda::memory_order_release);
  }
};

}  // namespace tandem::cuda::attention
