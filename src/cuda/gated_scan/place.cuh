// What a CTA and a thread of a gated scan have of the tensors.
#pragma once

#include "cuda/gated_scan/params.h"
#include "cuda/scan/channels.cuh"
#include "cuda/scan/tile_tokens.cuh"

namespace tandem::cuda {

/// A thread's part of its CTA's tiles.
template <class Config>
struct ScanPlace {
  int b;
  int rank;
  int block_channel;  // the block's first
  int column;         // of the thread's first channel, in the block
  int row;            // of the thread's first token, in the tile

  template <class Params>
  __device__ explicit ScanPlace(const Params& params) {
    const int chain = blockIdx.x / params.ranks;
    rank = blockIdx.x % params.ranks;
    b = chain / params.channel_blocks;
    block_channel = chain % params.channel_blocks * Config::kWidth;
    column = threadIdx.x % Config::kLanes * kChannels;
    row = threadIdx.x / Config::kLanes * Config::kTokens;
  }
  __device__ int channel() const { return block_channel + column; }
  template <class Stored>
  __device__ Stored* at(const TokenTensor& tensor, std::int64_t time) const {
    return static_cast<Stored*>(tensor.data) + b * tensor.batch_stride + time * tensor.time_stride +
           channel();
  }
};

/// Sequences without tokens: `to` is `from`, or 0 where that is null.
template <class Config>
__device__ void pass_empty_sequences(const ScanParams& params, const ScanPlace<Config>& place,
                                     const float* from, float* to) {
  if (to == nullptr) return;
  const ScanSequences& sequences = params.sequences;
  const bool packed = sequences.cu_seqlens != nullptr;
  if (!packed && sequences.T > 0) return;
  const int first = packed ? place.rank * Config::kThreads + threadIdx.x : place.b;
  const int end = packed ? sequences.N : place.b + (threadIdx.x == 0 && place.rank == 0 ? 1 : 0);
  const int channels = min(Config::kWidth, params.D - place.block_channel);
  for (int n = first; n < end; n += params.ranks * Config::kThreads) {
    if (packed && sequence_boundary(sequences, n + 1) > sequence_boundary(sequences, n)) continue;
    for (int j = 0; j < channels; ++j) {
      const std::int64_t at = std::int64_t{n} * params.D + place.block_channel + j;
      to[at] = from != nullptr ? from[at] : 0.0f;
    }
  }
}

template <class Config>
__device__ void classify_tokens(const ScanSequences& sequences, const ScanPlace<Config>& place,
                                TokenKind* kinds, int begin) {
  for (int t = threadIdx.x; t < Config::kTileTokens; t += Config::kThreads) {
    kinds[t] = token_kind(sequences, place.b, begin + t);
  }
}

}  // namespace tandem::cuda
