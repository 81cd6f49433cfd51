// How weights leave a warp's registers: through shared memory, so that it writes whole lines.
#pragma once

#include "cuda/attention_weights/forward_shared.cuh"
#include "cuda/parts/fragment.cuh"

namespace tandem::cuda::attention_weights {

/// A warp's 16 rows of a tile. All its lanes call.
template <class Config>
class StoredRows {
 public:
  using Element = typename Config::Element;

  __device__ StoredRows(const AttentionWeightsForwardProblem& problem,
                        const ForwardStrip<Config>& strip, int query)
      : stride_(problem.w.time_stride), keys_(strip.keys) {
    const int first = query + threadIdx.x % 128 / 32 * 16;
    rows_ = static_cast<int>(problem.TQ) - first;
    to_ = static_cast<Element*>(problem.w.data) + strip.batch * problem.w.batch_stride +
          strip.head * problem.w.head_stride + first * stride_;
  }

  /// Rounds and stores a block of weights whose first key is `key`, by way of panels of the
  /// warpgroup. why not by TMA: pieces of 128 bytes of a row cost a fifth of the memory's rate,
  /// those of 256 bytes a twentieth.
  __device__ void store(const float (&weights)[Config::kKeys / 2],
                        char (&panels)[Config::kKeys / 64][panel_bytes(64)], int key) const {
    __syncwarp();  // the block before has left
#pragma unroll
    for (int step = 0; step < Config::kKeys / 16; ++step) {
      std::uint32_t packed[4];
      accumulator_to_operand<Element>(weights, step, packed);
      store_rows(panels[step / 4], step % 4, packed);
    }
    __syncwarp();
    const int first = threadIdx.x % 128 / 32 * 16;
    for_pieces(key, [&](int row, int piece) {
      return *reinterpret_cast<const uint4*>(panels[piece / 8] +
                                             panel_offset(first + row, piece % 8));
    });
  }

  /// Stores zeros for all keys from `key` on.
  __device__ void store_zeros(int key) const {
    for (; key < keys_; key += Config::kKeys) {
      for_pieces(key, [](int, int) { return uint4{}; });
    }
  }

 private:
  /// Stores what `value` says of each row and its 16 bytes, neighbours by neighbouring lanes.
  template <class Value>
  __device__ void for_pieces(int key, const Value& value) const {
    constexpr int kPieces = Config::kKeys / 8, kRowsAtOnce = 32 / kPieces;
    const int lane = threadIdx.x % 32, piece = lane % kPieces, first = lane / kPieces;
    Element* to = to_ + first * stride_ + key + 8 * piece;
    const bool exists = key + 8 * piece < keys_;
#pragma unroll
    for (int row = 0; row < 16; row += kRowsAtOnce) {
      const uint4 words = value(first + row, piece);
      if (exists && first + row < rows_) *reinterpret_cast<uint4*>(to) = words;
      to += kRowsAtOnce * stride_;
    }
  }

  Element* to_;
  std::int64_t stride_;
  int rows_;
  int keys_;
};

}  // namespace tandem::cuda::attention_weights
