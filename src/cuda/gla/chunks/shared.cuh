// What the roles of gla_chunk_gradients_kernel share: shared memory, and where a pair lies.
#pragma once

#include "cuda/gla/chunks/params.h"
#include "cuda/parts/barrier.cuh"
#include "cuda/parts/decay.cuh"
#include "cuda/parts/panel.cuh"
#include "cuda/parts/tma.cuh"

namespace tandem::cuda::gla {

struct ChunkGradientsShared {
  using Panel = char[panel_bytes(64)];
  static constexpr int kStages = 2;

  /// Panels of one chunk. Gradients leave through panels that are no longer needed. States between
  /// the pair's chunks are made in panels that may hold the state where the second segment begins
  /// before, and dv afterwards.
  struct Chunk {
    alignas(1024) Panel q;  // then dq
    alignas(1024) Panel k;
    alignas(1024) Panel v;  // then dk
    alignas(1024) Panel d_o;
    alignas(1024) Panel state;           // [V,K], before the chunk
    alignas(1024) Panel state_gradient;  // [V,K], behind it
  };
  /// What a chunk has beside its panels: decays and row sums.
  struct Tokens {
    ChunkDecay<64> decay;         // from S to tokens, and into the next S
    ChunkDecay<64> decay_behind;  // from dS to tokens, and into the dS before
    alignas(16) float log_decay[64];
    float query_rows[64];      // a
    float key_state_rows[64];  // b
    float key_rows[64];        // c
    float flows[4];            // a warp's share of <S, dS>
  };
  /// One chunk pair in flight.
  struct Stage {
    Chunk chunks[2];
    Tokens tokens[2];
    EntryFactors entry_factors;
    bool enters[2];      // whether what is left of it is added to S, to dS
    Barrier inputs;      // q, k, v, d_o, decays
    Barrier states;      // copied in
    Barrier all_states;  // made
    Barrier made;        // gradients
  };
  Stage stages[kStages];
  alignas(1024) Panel weights[2];  // Wt
};

/// `kReverse`: a CTA takes the pairs of whole heads, from the last to the first, and makes dS.
template <class ElementT, bool kReverseT>
struct ChunkGradientsConfig {
  using Element = ElementT;
  static constexpr bool kReverse = kReverseT;

  // Threads of the roles, and registers per thread after setmaxnreg.
  static constexpr int kThreads = 512;
  static constexpr int kProducts = 256;
  static constexpr int kStates = 128;
  static constexpr int kMemoryRegisters = kReverse ? 48 : 56;
  static constexpr int kStateRegisters = kReverse ? 112 : 88;
  static constexpr int kProductRegisters = kReverse ? 176 : 184;
  static_assert(kMemoryRegisters + kStateRegisters + 2 * kProductRegisters <= 512);
};

/// Where a pair of chunks lies.
struct ChunkPair {
  int batch;
  int head;
  int begin;                 // token
  int index;                 // of the sequence
  std::int64_t panel_index;  // [B,H,pairs]

  __device__ TileCoordinate tile(int which) const { return {0, head, begin + 64 * which, batch}; }
  /// The state before the n-th pair of the sequence, which has `pairs`.
  __device__ TileCoordinate state(int n, int pairs) const {
    return {0, head, 0, batch * pairs + n};
  }
};

/// The pairs of chunks that a CTA takes.
template <class Config>
struct ChunkPairs {
  unsigned H;
  unsigned pairs;  // of a sequence
  unsigned count;

  explicit __device__ ChunkPairs(const ChunkBackwardParams& params)
      : H(params.problem.forward.H), pairs(params.pairs) {
    const unsigned own = Config::kReverse ? pairs : 1;
    count = (params.count / own - blockIdx.x + gridDim.x - 1) / gridDim.x * own;
  }

  /// Heads are innermost: they are neighbours in memory.
  __device__ ChunkPair operator[](unsigned n) const {
    unsigned head, batch, index;
    if constexpr (Config::kReverse) {
      const unsigned nth_head = n / pairs, at = blockIdx.x + nth_head * gridDim.x;
      index = pairs - 1 - (n - nth_head * pairs);
      batch = at / H;
      head = at - batch * H;
    } else {
      const unsigned at = blockIdx.x + n * gridDim.x;
      const unsigned of_head = at / H;
      head = at - of_head * H;
      batch = of_head / pairs;
      index = of_head - batch * pairs;
    }
    ChunkPair pair;
    pair.head = static_cast<int>(head);
    pair.batch = static_cast<int>(batch);
    pair.index = static_cast<int>(index);
    pair.begin = 128 * pair.index;
    pair.panel_index = std::int64_t{batch * H + head} * pairs + index;
    return pair;
  }
};

}  // namespace tandem::cuda::gla
