// What the roles of gla_reverse_kernel share: its sizes, shared memory and barriers.
#pragma once

#include "cuda/gla/common/item.cuh"
#include "cuda/gla/reverse/params.h"
#include "cuda/parts/barrier.cuh"
#include "cuda/parts/decay.cuh"
#include "cuda/parts/panel.cuh"
#include "cuda/parts/tma.cuh"

namespace tandem::cuda::gla {

template <class ElementT, int kKeyDimT, int kValueDimT>
struct ReverseConfig {
  using Element = ElementT;
  static_assert(kKeyDimT == kValueDimT, "dk leaves through the tile of v");
  static constexpr int kChunk = 64;
  static constexpr int kKeyDim = kKeyDimT;      // columns of q and k, padded with zeros
  static constexpr int kValueDim = kValueDimT;  // columns of v and d_o
  static constexpr int kKeySteps = kKeyDim / 16;
  static constexpr int kValueSteps = kValueDim / 16;
  static constexpr int kKeyPanels = kKeyDim / kPanelColumns;
  static constexpr int kValuePanels = kValueDim / kPanelColumns;
  static constexpr int kKeyTileBytes = kKeyPanels * panel_bytes(kChunk);
  static constexpr int kValueTileBytes = kValuePanels * panel_bytes(kChunk);
  static constexpr int kStateBytes = kKeyPanels * panel_bytes(kValueDim);

  // Threads of the roles, and registers per thread after setmaxnreg.
  static constexpr int kThreads = 512;
  static constexpr int kRoleThreads = 128;
  static constexpr int kMemoryRegisters = 56;
  static constexpr int kScoreRegisters = 128;
  static constexpr int kGradientRegisters = 128;
  static constexpr int kStateRegisters = 200;
  static_assert(kMemoryRegisters + kScoreRegisters + kGradientRegisters + kStateRegisters <= 512);
};

template <class Config>
struct ReverseShared {
  static constexpr int kStages = 2;

  /// A chunk's tiles, in panels of 64 columns. dq and dk leave through tiles that are no longer
  /// needed.
  struct Stage {
    alignas(1024) char q[Config::kKeyTileBytes];  // then dq
    alignas(1024) char k[Config::kKeyTileBytes];
    alignas(1024) char v[Config::kValueTileBytes];  // then dk
    alignas(1024) char d_o[Config::kValueTileBytes];
  };
  /// What a chunk has beside its tiles: decays, and sums for the gradient by the decays.
  struct Tokens {
    ChunkDecay<64> decay;         // from S to tokens, and into the next S
    ChunkDecay<64> decay_behind;  // from dS to tokens, and into the dS before
    alignas(16) float log_decay[64];
    alignas(16) float query_state[64];     // a: q . what dq has from S
    alignas(16) float key_state[64];       // b: k . what dk has from dS
    alignas(16) float key_intra[64];       // rows of E, over queries
    alignas(16) float query_intra[4][64];  // columns of E, over a warp's keys
    float flows[4];                        // a warp's share of <S, dS>, of a pair's first chunk
  };

  Stage stages[kStages];
  alignas(1024) char state[Config::kStateBytes];         // St [V,K] before the chunk's pair
  alignas(1024) char gradient[Config::kStateBytes];      // dSt [V,K] behind the chunk
  alignas(1024) char weights[kStages][panel_bytes(64)];  // Wt
  alignas(1024) char dv[panel_bytes(64)];                // 64 columns of dv, on their way out
  Tokens tokens[kStages];

  /// The gradient behind the segment, fp32 [K,V], where the second chunk comes later. why not from
  /// device memory to registers: loads of many at a time make ptxas (13.0) spill dS, and one after
  /// the other they take 90 us.
  __device__ float* entry() { return reinterpret_cast<float*>(&stages[1]); }
  static_assert(sizeof(Stage) >= sizeof(float) * Config::kKeyDim * Config::kValueDim);

  // A barrier tells its last two phases apart, no more: what a role waits for must not get further
  // ahead of it than the stages allow.
  // Per stage: filled; done with; weights made; done with; q read by the state role.
  Barrier full[kStages];
  Barrier done[kStages];
  Barrier weights_full[kStages];
  Barrier weights_empty[kStages];
  Barrier queries_read[kStages];
  // Once.
  Barrier entry_loaded;
  Barrier entry_read;
  // Per pair.
  Barrier state_loaded;
  Barrier state_empty;
  // Per chunk.
  Barrier gradient_full;
  Barrier gradient_empty;
};

/// Where a role is: the n-th chunk along the walk.
struct ReversePosition {
  int n = 0;

  __device__ int stage() const { return n & 1; }
  /// Of barriers per chunk, and of those per stage.
  __device__ std::uint32_t parity() const { return n & 1; }
  __device__ std::uint32_t stage_parity() const { return (n >> 1) & 1; }
  __device__ ReversePosition next() const { return {n + 1}; }
};

/// The segment of a head that a CTA walks.
struct ReverseHead {
  int batch;
  int head;
  int segment;
  int first;  // chunk of the segment
  int chunks;
  int pairs;
  std::int64_t index;  // into [B,H,segments]

  explicit __device__ ReverseHead(const ReverseParams& params) {
    // Heads are innermost: they are neighbours in memory.
    const int H = params.problem.forward.H;
    const unsigned of_head = blockIdx.x / H;
    head = static_cast<int>(blockIdx.x % H);
    segment = static_cast<int>(of_head % params.segments);
    batch = static_cast<int>(of_head / params.segments);
    first = segment * params.segment_chunks;
    chunks = min(params.segment_chunks, params.chunks - first);
    pairs = (chunks + 1) / 2;
    index = (std::int64_t{batch} * H + head) * params.segments + segment;
  }

  /// The n-th chunk of the walk, counted in time from the segment's first.
  __device__ int in_time(int n) const { return chunks - 1 - n; }
  /// Whether the n-th chunk of the walk is the second of its pair in time.
  __device__ bool is_second(int n) const { return in_time(n) % 2 == 1; }
  /// Its first token.
  __device__ int begin(int n) const { return 64 * (first + in_time(n)); }
  /// The token behind the segment.
  __device__ int end() const { return 64 * (first + chunks); }
  __device__ TileCoordinate tile(int n) const { return {0, head, begin(n), batch}; }
  /// 64 rows of V of the state before a pair, counted in time from the segment's first.
  __device__ TileCoordinate state(const ReverseParams& params, int pair, int first_value) const {
    const int before = batch * params.sequence_pairs + segment * params.pairs;
    return {0, head, first_value, before + pair};
  }
  /// The n-th chunk's pair, counted along the walk.
  __device__ int pair(int n) const { return pairs - 1 - in_time(n) / 2; }
};

}  // namespace tandem::cuda::gla
