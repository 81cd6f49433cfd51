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
  static constexpr int kWhole = -1;

  /// Panels of one chunk. Gradients leave through panels that are no longer needed. States at the
  /// pair's ends are copied in; states between its chunks are made here, in panels that may hold a
  /// state at the cut before, and dv afterwards.
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
    CutFactor cut_factor;
    int cut_chunk;  // the chunk whose state at the pair's end began at the cut, or kWhole
    Barrier inputs;
    Barrier states;
    Barrier made;
  };
  Stage stages[kStages];
  alignas(1024) Panel weights[2];  // Wt
};

/// Threads of the roles, and registers per thread after setmaxnreg.
struct ChunkGradientsConfig {
  static constexpr int kThreads = 384;
  static constexpr int kProducts = 256;
  static constexpr int kMemoryRegisters = 56;
  static constexpr int kProductRegisters = 224;
  static_assert(kMemoryRegisters + 2 * kProductRegisters <= 65536 / kThreads / 8 * 8 * 3);
};

/// Where a pair of chunks lies.
struct ChunkPair {
  int batch;
  int head;
  int begin;                 // token
  int index;                 // of the sequence
  std::int64_t panel_index;  // [B,H,pairs]

  __device__ TileCoordinate tile(int which) const { return {0, head, begin + 64 * which, batch}; }
};

/// Finds chunk pair `at`. Heads are innermost: they are neighbours in memory.
__device__ inline ChunkPair find_pair(const ChunkBackwardParams& params, unsigned at) {
  const unsigned H = params.problem.forward.H, pairs = params.pairs;
  const unsigned of_head = at / H, batch = of_head / pairs;
  ChunkPair pair;
  pair.head = static_cast<int>(at - of_head * H);
  pair.batch = static_cast<int>(batch);
  pair.index = static_cast<int>(of_head - batch * pairs);
  pair.begin = 128 * pair.index;
  pair.panel_index = std::int64_t{batch * H + pair.head} * pairs + pair.index;
  return pair;
}

}  // namespace tandem::cuda::gla
