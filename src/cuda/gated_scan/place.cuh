// Where the tokens and channels of a CTA and of a thread of a gated scan lie.
#pragma once

#include "cuda/gated_scan/params.h"
#include "cuda/scan/channels.cuh"
#include "cuda/scan/tile_tokens.cuh"

namespace tandem::cuda::gated_scan {

/// Where a thread's tokens and channels lie.
template <class Config>
struct Place {
  int b;
  int rank;
  int warp;
  int block_channel;  // first channel of the CTA's block
  int column;         // the thread's first channel, in the block
  int row;            // the thread's first token, in the tile

  template <class Params>
  __device__ explicit Place(const Params& params) {
    const int chain = blockIdx.x / params.ranks;
    rank = blockIdx.x % params.ranks;
    b = chain / params.channel_blocks;
    block_channel = chain % params.channel_blocks * Config::kWidth;
    column = threadIdx.x % Config::kLanes * Config::kChannels;
    // why a shuffle: the compiler then knows that the value is the same for all of the warp.
    warp = __shfl_sync(0xFFFFFFFFu, static_cast<int>(threadIdx.x / 32), 0);
    row = Config::kLanes == 32 ? warp * Config::kTokens
                               : threadIdx.x / Config::kLanes * Config::kTokens;
  }
  /// Returns how many of the thread's tokens exist in a tile that begins at `begin`, in their
  /// order; none in a tile before 0.
  __device__ int tokens(int T, int begin) const { return begin < 0 ? 0 : T - begin - row; }
  __device__ int channel() const { return block_channel + column; }
  template <class Stored>
  __device__ Stored* at(const TokenTensor& tensor, std::int64_t time) const {
    return static_cast<Stored*>(tensor.data) + b * tensor.batch_stride + time * tensor.time_stride +
           channel();
  }
};

/// Starts loading the thread's tokens of the tile that begins at `begin`: pieces of token i from
/// `pieces` + i kOfToken kThreads on.
template <class Config, class Stored, int kOfToken, class Piece>
__device__ void load_tokens(const ChainParams& params, const Place<Config>& place,
                            const TokenTensor& tensor, Piece* pieces, int begin) {
  const int channels = params.D - place.channel();
  const int tokens = place.tokens(params.sequences.T, begin);
  const auto* from = place.template at<const Stored>(tensor, begin + place.row);
  const auto copy = [&](int i, int valid) {
    copy_channels<Config::kAligned, Config::kThreads, Config::kChannels>(
        pieces + i * kOfToken * Config::kThreads, from + i * tensor.time_stride, valid);
  };
  // why apart: needs no conditions.
  if (tokens >= Config::kTokens && channels >= Config::kChannels) {
#pragma unroll
    for (int i = 0; i < Config::kTokens; ++i) copy(i, Config::kChannels);
  } else {
#pragma unroll
    for (int i = 0; i < Config::kTokens; ++i) copy(i, i < tokens ? channels : 0);
  }
}

/// Writes the states of sequences without tokens: `to` is `from`, or 0 where that is null.
template <class Config>
__device__ void pass_empty_sequences(const ChainParams& params, const Place<Config>& place,
                                     const float* from, float* to) {
  if (to == nullptr) return;
  const ScanSequences& sequences = params.sequences;
  const bool packed = sequences.cu_seqlens != nullptr;
  if (!packed && sequences.T > 0) return;
  const int first = packed ? 0 : place.b;
  const std::int64_t count = std::int64_t{packed ? sequences.N : 1} * Config::kWidth;
  for (std::int64_t i = place.rank * Config::kThreads + threadIdx.x; i < count;
       i += params.ranks * Config::kThreads) {
    const int n = first + static_cast<int>(i / Config::kWidth);
    const int channel = place.block_channel + static_cast<int>(i % Config::kWidth);
    if (channel >= params.D) continue;
    if (packed && sequence_boundary(sequences, n + 1) > sequence_boundary(sequences, n)) continue;
    const std::int64_t at = std::int64_t{n} * params.D + channel;
    to[at] = from != nullptr ? from[at] : 0.0f;
  }
}

/// Whether the thread's tokens neither begin nor end a sequence, nor lie outside of all.
template <class Config>
__device__ bool are_inside(const TokenKind* kinds) {
  static_assert(TokenKind::kInside == -1);
  if constexpr (Config::kLanes == 32) {  // a warp has the same tokens: a word per lane
    constexpr int kWords = 2 * Config::kTokens;
    static_assert(32 % kWords == 0);
    const int word = reinterpret_cast<const int*>(kinds)[threadIdx.x % kWords];
    return __all_sync(0xFFFFFFFFu, word == TokenKind::kInside);
  } else {
    bool inside = true;
#pragma unroll
    for (int i = 0; i < Config::kTokens; ++i) {
      inside &= kinds[i].first == TokenKind::kInside && kinds[i].last < 0;
    }
    return inside;
  }
}

/// The kinds of the tokens of a CTA's tiles, for one step after another.
template <class Config>
struct TileKinds {
  // why three: some threads read those of the last step while others clear those of the next.
  alignas(16) TokenKind kinds[3][Config::kTileTokens];

  __device__ const TokenKind* of(int step) const { return kinds[step % 3]; }

  /// Clears the kinds of a step. All threads, before a barrier.
  __device__ void clear(const ChainParams& params, const Place<Config>& place, int step,
                        int begin) {
    clear_tokens<Config::kTileTokens, Config::kThreads>(params.sequences, place.b, begin,
                                                        kinds[step % 3]);
  }
  /// Marks where sequences begin and end. All threads, between that barrier and another one.
  __device__ void mark(const ChainParams& params, int step, int begin) {
    if (threadIdx.x / 32 == Config::kWarps - 1) {
      mark_tokens<Config::kTileTokens>(params.sequences, begin, kinds[step % 3]);
    }
  }
};

}  // namespace tandem::cuda::gated_scan
