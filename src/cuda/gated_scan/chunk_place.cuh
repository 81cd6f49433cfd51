// Where a thread of gated_scan_decay, gated_scan_carry and its backward works: some neighbouring
// channels of one chunk, whose tokens it reads from global memory a group at a time; or one channel
// of a share of a sequence's chunks.
#pragma once

#include <cstdint>
#include <type_traits>

#include "cuda/gated_scan/carry_variants.h"
#include "cuda/runtime/plan.h"
#include "cuda/scan/channels.cuh"
#include "cuda/scan/functions.cuh"
#include "cuda/scan/map.cuh"

namespace tandem::cuda::gated_scan {

using namespace scan;

constexpr int kGroupTokens = 8;  // on the way at one time
static_assert(kGatedScanChunk % kGroupTokens == 0);

struct ChunkPlace {
  std::int64_t b, line;  // of `before`, [B x chunks]
  int channel, begin, tokens;

  template <int kChannels>
  static __device__ ChunkPlace of_thread(const ScanDecays& p) {
    const auto index = std::int64_t{blockIdx.x} * kChunkThreads + threadIdx.x;
    const int vectors = (p.D + kChannels - 1) / kChannels;
    const std::int64_t line = index / vectors;
    const auto chunks = static_cast<int>(p.chunks());
    const int begin = static_cast<int>(line % chunks) * kGatedScanChunk;
    const int tokens = min(kGatedScanChunk, static_cast<int>(p.T) - begin);
    return {line / chunks, line, static_cast<int>(index % vectors) * kChannels, begin, tokens};
  }
  __device__ bool exists(const ScanDecays& p) const { return b < p.B; }

  /// The thread's channels of the chunk's first token.
  template <class Stored>
  __device__ Stored* first(const TokenTensor& tensor) const {
    return static_cast<Stored*>(tensor.data) + b * tensor.batch_stride +
           begin * tensor.time_stride + channel;
  }
};

/// How many CTAs have a thread for each vector of channels of each chunk.
template <int kChannels>
unsigned chunk_blocks(const ScanDecays& p) {
  return static_cast<unsigned>(
      ceil_div(p.B * p.chunks() * ceil_div(p.D, kChannels), kChunkThreads));
}

constexpr int kShareWarps = 32;

/// Of CTAs of 32 channels of a sequence, in which each warp has a share of neighbouring chunks.
struct ChunkShare {
  std::int64_t b, first, begin, end;  // `first`: where the channel's first line of `before` is
  int channel, lane, warp;
  bool exists;

  template <int kWarps>
  static __device__ ChunkShare of_thread(const ScanDecays& p) {
    const int blocks = (p.D + 31) / 32, lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const std::int64_t b = blockIdx.x / blocks, chunks = p.chunks();
    const int channel = static_cast<int>(blockIdx.x % blocks) * 32 + lane;
    const bool exists = channel < p.D;
    const std::int64_t share = (chunks + kWarps - 1) / kWarps, begin = warp * share;
    const std::int64_t end = exists ? min(begin + share, chunks) : begin;
    return {b, b * chunks * p.D + channel, begin, end, channel, lane, warp, exists};
  }
};

inline unsigned share_blocks(const ScanDecays& p) {
  return static_cast<unsigned>(p.B * ceil_div(p.D, 32));
}

/// A thread's channels of one token as they are stored.
template <class Stored, int kChannels>
class TokenChannels {
 public:
  using Piece = std::conditional_t<kChannels == 1, Stored, uint4>;

  __device__ void load(const Stored* from) {
#pragma unroll
    for (int i = 0; i < kPieces; ++i) pieces_[i] = reinterpret_cast<const Piece*>(from)[i];
  }
  __device__ void unpack(float (&values)[kChannels]) const {
    if constexpr (kChannels == 1) {
      values[0] = static_cast<float>(pieces_[0]);
    } else {
      unpack_channels<1, Stored>(pieces_, values);
    }
  }

 private:
  static constexpr int kPieces = kPiecesOf<Stored, Piece, kChannels>;
  Piece pieces_[kPieces];
};

/// Stores channels, which all exist.
template <class Stored, int kChannels>
__device__ inline void store_token(Stored* to, const float (&values)[kChannels]) {
  store_channels<(kChannels > 1), uint4>(to, values, kChannels);
}

template <class Decay, int kChannels>
__device__ inline void unpack_decay(const TokenChannels<Decay, kChannels>& token, bool is_log,
                                    float (&values)[kChannels]) {
  token.unpack(values);
  if (!is_log) return;
#pragma unroll
  for (float& value : values) value = exp_flushed<sizeof(Decay) == 4>(value);
}

/// What a decay, or a product of some, leaves of a value: nothing of inf and NaN, too, where it is
/// 0.
__device__ inline float kept(float decay, float value) { return apply({decay, 0.0f}, value); }

}  // namespace tandem::cuda::gated_scan
