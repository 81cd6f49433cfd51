// The log-decays of an item's chunks, on their way from device memory well before they are used.
#pragma once

#include <cutlass/arch/memory_sm80.h>

#include "cuda/gla/common/item.cuh"
#include "cuda/parts/decay.cuh"

namespace tandem::cuda::gla {

/// Copies log-decays ahead, by one warp. Lane l copies and reads those of tokens 2l and 2l+1 of
/// each chunk of 64; for reverse walks the last lane takes the token behind the chunk, too. Nothing
/// is shared between lanes.
template <bool kReverse>
class DecayStream {
 public:
  // why so many: a chunk may take less than half a microsecond, the memory takes more than one.
  static constexpr int kAhead = 4;
  using Buffer = float[kAhead][68];

  /// Starts at the chunk that lies `offset` tokens behind the item's begin; each next one lies
  /// `step` chunks further. `reach`: tokens from the item's begin that have a decay. `later_head`:
  /// heads behind the item's first.
  __device__ DecayStream(Buffer& buffer, const DecayTensor& decay, const Item& item, int reach,
                         int offset, int step, int later_head = 0)
      : buffer_(buffer),
        decay_(decay),
        item_(item),
        reach_(reach),
        offset_(offset),
        step_(64 * step) {
    head_ = decay.data + item.batch * decay.batch_stride +
            (item.head + later_head) * decay.head_stride +
            std::int64_t{item.begin} * decay.time_stride;
    for (int i = 0; i < kAhead; ++i) request(i);
  }
  /// Waits for copies past the last chunk, which must not land in the next item's.
  __device__ ~DecayStream() { cutlass::arch::cp_async_wait<0>(); }
  DecayStream(const DecayStream&) = delete;
  DecayStream& operator=(const DecayStream&) = delete;

  /// Returns the next chunk's log-decays; 0 for tokens outside of the item's sequence and, behind
  /// the chunk, beyond the reach.
  __device__ LogDecays next() {
    cutlass::arch::cp_async_wait<kAhead - 1>();
    const int token = threadIdx.x % 32 * 2;
    LogDecays decays{*reinterpret_cast<const float2*>(&buffer_[slot_][token]), 0.0f};
    if constexpr (kReverse) {
      if (threadIdx.x % 32 == kLastLane) decays.behind = buffer_[slot_][64];
      decays.behind = __shfl_sync(0xFFFFFFFFu, decays.behind, kLastLane);
    }
    request(slot_);
    slot_ = (slot_ + 1) % kAhead;
    return decays;
  }

 private:
  static constexpr int kLastLane = 31;

  __device__ void request(int slot) {
    const int lane_token = threadIdx.x % 32 * 2;
    const auto copy = [&](int index, int limit) {
      const int token = offset_ + index;
      const bool inside = decay_.data != nullptr && token >= -item_.before && token < limit;
      cutlass::arch::cp_async_zfill<4>(
          &buffer_[slot][index], inside ? head_ + std::int64_t{token} * decay_.time_stride : head_,
          inside);
    };
    copy(lane_token, item_.left);
    copy(lane_token + 1, item_.left);
    if constexpr (kReverse) {
      if (threadIdx.x % 32 == kLastLane) copy(64, reach_);
    }
    cutlass::arch::cp_async_fence();
    offset_ += step_;
  }

  Buffer& buffer_;
  const DecayTensor& decay_;
  const Item& item_;
  const float* head_;
  int reach_;
  int offset_;  // of the chunk to be asked for next
  int step_;
  int slot_ = 0;
};

}  // namespace tandem::cuda::gla
