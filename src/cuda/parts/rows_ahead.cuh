// Rows of some matrices on their way into shared memory, ahead of their use: the copy engine brings
// them, which takes no registers. Rows begin at multiples of 16 bytes and have whole 16 bytes.
#pragma once

#include <cstdint>

#include <cute/arch/copy_sm90_tma.hpp>

#include "cuda/parts/barrier.cuh"

namespace tandem::cuda {

/// Of kCount matrices `stages` rows each. All threads of a CTA.
template <int kCount>
class RowsAhead {
 public:
  /// Bytes of shared memory that it takes.
  static __host__ __device__ constexpr int bytes(int stages, int row_bytes) {
    return kBarrierBytes + stages * kCount * row_bytes;
  }
  /// As many stages as lie in `most_bytes`, at least two.
  static __host__ __device__ constexpr int stages_in(int most_bytes, int row_bytes) {
    int stages = kMostStages;
    while (stages > 2 && bytes(stages, row_bytes) > most_bytes) --stages;
    return stages;
  }

  /// `memory` begins at a multiple of 16 bytes. Before begin().
  __device__ RowsAhead(char* memory, int stages, int row_bytes)
      : full_(reinterpret_cast<Barrier*>(memory)),
        rows_(memory + kBarrierBytes),
        stages_(stages),
        row_bytes_(row_bytes) {}

  /// Starts loading rows [begin, begin + stages) that lie before `end`; row_at(matrix, row) tells
  /// where a row begins, null for a matrix that is not there.
  template <class RowAt>
  __device__ void begin(std::int64_t begin, std::int64_t end, const RowAt& row_at) {
    if (threadIdx.x == 0) {
      for (int stage = 0; stage < stages_; ++stage) full_[stage].init(1);
      fence_barriers_initialised();
      for (int i = 0; i < stages_ && begin + i < end; ++i) load(i, begin + i, row_at);
    }
    __syncthreads();
  }

  /// Waits for the next row.
  __device__ void wait() const { full_[stage_].wait(parity_); }
  /// That row of a matrix.
  __device__ const char* row(int matrix) const {
    return rows_ + (stage_ * kCount + matrix) * row_bytes_;
  }
  /// Goes on to the next row.
  __device__ void advance() {
    if (++stage_ < stages_) return;
    stage_ = 0;
    parity_ ^= 1;
  }
  /// Starts loading a row in the place of the one before this, `row`. Behind a barrier of the CTA
  /// that follows the reads of that one.
  template <class RowAt>
  __device__ void replace_before(std::int64_t row, std::int64_t begin, std::int64_t end,
                                 const RowAt& row_at) {
    const std::int64_t next = row - 1 + stages_;
    if (threadIdx.x != 0 || row == begin || next >= end) return;
    load(stage_ == 0 ? stages_ - 1 : stage_ - 1, next, row_at);
  }

 private:
  static constexpr int kMostStages = 4;
  static constexpr int kBarrierBytes = 64;

  template <class RowAt>
  __device__ void load(int stage, std::int64_t row, const RowAt& row_at) {
    int count = 0;
#pragma unroll
    for (int i = 0; i < kCount; ++i) count += row_at(i, row) != nullptr ? 1 : 0;
    full_[stage].arrive_and_expect(count * row_bytes_);
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      const void* from = row_at(i, row);
      if (from == nullptr) continue;
      cute::SM90_BULK_COPY_G2S::copy(from, &full_[stage].word,
                                     rows_ + (stage * kCount + i) * row_bytes_, row_bytes_);
    }
  }

  Barrier* full_;
  char* rows_;
  int stages_;
  int row_bytes_;
  int stage_ = 0;
  std::uint32_t parity_ = 0;
};

}  // namespace tandem::cuda
