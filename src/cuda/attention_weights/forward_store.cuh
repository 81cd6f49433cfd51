// How weights leave a warp's registers: through shared memory, so that it writes whole lines.
#pragma once

#include "cuda/attention_weights/forward_shared.cuh"
#include "cuda/attention_weights/unaligned_rows.cuh"
#include "cuda/parts/fragment.cuh"

namespace tandem::cuda::attention_weights {

/// A warp's 16 rows of a tile. All its lanes call.
template <class Config>
class StoredRows {
 public:
  using Element = typename Config::Element;
  using Panel = char[panel_bytes(64)];

  __device__ StoredRows(const ForwardParams& params, const ForwardStrip<Config>& strip, int query)
      : whole_pieces_(params.whole_pieces),
        stride_(params.problem.w.time_stride),
        keys_(strip.keys) {
    const AttentionWeightsForwardProblem& problem = params.problem;
    const int first = query + threadIdx.x % 128 / 32 * 16;
    rows_ = static_cast<int>(problem.TQ) - first;
    to_ = static_cast<Element*>(problem.w.data) + strip.batch * problem.w.batch_stride +
          strip.head * problem.w.head_stride + first * stride_;
  }

  /// Rounds 64 weights of each row into a panel of the warpgroup.
  __device__ static void put(const float (&weights)[32], Panel& panel) {
#pragma unroll
    for (int step = 0; step < 4; ++step) {
      std::uint32_t packed[4];
      accumulator_to_operand<Element>(weights, step, packed);
      store_rows(panel, step, packed);
    }
  }

  /// Stores what the warp has put into the panels, whose first key is `key`. why not by TMA: pieces
  /// of 128 bytes of a row cost a fifth of the memory's rate, those of 256 bytes a twentieth.
  /// Streaming stores leave the cache at once instead of all together.
  __device__ void store(const Panel (&panels)[Config::kStoredHalves], int key) const {
    __syncwarp();
    const int first = threadIdx.x % 128 / 32 * 16;
    if (whole_pieces_) {
      const int own = first + threadIdx.x % 32 / kPieces, piece = threadIdx.x % kPieces;
      for_rows(key, [&](int row) {
        return *reinterpret_cast<const uint4*>(panels[piece / 8] +
                                               panel_offset(own + row, piece % 8));
      });
    } else {
      for (int half = 0; half < Config::kStoredHalves; ++half) {
        store_panel_rows<16>(panels[half] + panel_bytes(first), to_ + key + 64 * half, stride_,
                             rows_, min(64, keys_ - key - 64 * half));
      }
    }
    __syncwarp();  // before the next weights are put there
  }

  /// Stores zeros for all keys from `key` on.
  __device__ void store_zeros(int key) const {
    if (whole_pieces_) {
      for (; key < keys_; key += kColumns) {
        for_rows(key, [](int) { return uint4{}; });
      }
    } else {
      for (; key < keys_; key += 64) {
        store_unaligned_rows<16>([](int) { return ZeroRow(); }, to_ + key, stride_, rows_,
                                 min(64, keys_ - key));
      }
    }
  }

 private:
  static constexpr int kColumns = 64 * Config::kStoredHalves, kPieces = kColumns / 8;
  static constexpr int kRowsAtOnce = 32 / kPieces;

  /// Stores what `value` says of each row's 16 bytes, neighbours by neighbouring lanes; of a lane's
  /// first row it is `value(0)`.
  template <class Value>
  __device__ void for_rows(int key, const Value& value) const {
    const int lane = threadIdx.x % 32;
    Element* to = to_ + lane / kPieces * stride_ + lane % kPieces * 8 + key;
    if (rows_ >= 16 && key + kColumns <= keys_) {
#pragma unroll
      for (int row = 0; row < 16; row += kRowsAtOnce) {
        __stcs(reinterpret_cast<uint4*>(to + row * stride_), value(row));
      }
      return;
    }
    const bool exists = key + 8 * (lane % kPieces) < keys_;
#pragma unroll 1
    for (int row = 0; row < 16; row += kRowsAtOnce) {
      const uint4 words = value(row);
      if (exists && row + lane / kPieces < rows_) {
        *reinterpret_cast<uint4*>(to + row * stride_) = words;
      }
    }
  }

  bool whole_pieces_;
  Element* to_;
  std::int64_t stride_;
  int rows_;
  int keys_;
};

}  // namespace tandem::cuda::attention_weights
