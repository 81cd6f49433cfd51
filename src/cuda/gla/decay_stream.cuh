// The log-decays of an item's chunks, on their way from device memory well before they are used.
#pragma once

#include <cutlass/arch/memory_sm80.h>

#include "cuda/gla/item.cuh"

namespace tandem::cuda {

/// One warp. Lane l copies and reads the decays of tokens 2l and 2l+1 of each chunk of 64: nothing
/// is shared between lanes.
class DecayStream {
 public:
  // why so many: a chunk may take less than half a microsecond, the memory takes more than one.
  static constexpr int kAhead = 4;
  using Buffer = float[kAhead][64];

  /// The first chunk that next() returns lies `offset` tokens behind the item's begin, the others
  /// follow by `step` chunks.
  __device__ DecayStream(Buffer& buffer, const DecayTensor& decay, const Item& item, int offset,
                         int step)
      : buffer_(buffer), decay_(decay), item_(item), offset_(offset), step_(64 * step) {
    head_ = decay.data + item.batch * decay.batch_stride + item.head * decay.head_stride +
            std::int64_t{item.begin} * decay.time_stride;
    for (int i = 0; i < kAhead; ++i) request(i);
  }
  /// Copies past the last chunk must not land in the next item's.
  __device__ ~DecayStream() { cutlass::arch::cp_async_wait<0>(); }
  DecayStream(const DecayStream&) = delete;
  DecayStream& operator=(const DecayStream&) = delete;

  /// Natural-log decays of this lane's two tokens, 0 outside the item.
  __device__ float2 next() {
    cutlass::arch::cp_async_wait<kAhead - 1>();
    const int token = threadIdx.x % 32 * 2;
    const float2 pair = *reinterpret_cast<const float2*>(&buffer_[slot_][token]);
    request(slot_);
    slot_ = (slot_ + 1) % kAhead;
    return pair;
  }

 private:
  __device__ void request(int slot) {
    const int lane_token = threadIdx.x % 32 * 2;
    const int token = offset_ + lane_token;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const bool inside = decay_.data != nullptr && token + i >= 0 && token + i < item_.length;
      cutlass::arch::cp_async_zfill<4>(
          &buffer_[slot][lane_token + i],
          inside ? head_ + std::int64_t{token + i} * decay_.time_stride : head_, inside);
    }
    cutlass::arch::cp_async_fence();
    offset_ += step_;
  }

  Buffer& buffer_;
  const DecayTensor& decay_;
  const Item& item_;
  const float* head_;
  int offset_;  // of the chunk to be asked for next
  int step_;
  int slot_ = 0;
};

}  // namespace tandem::cuda
