// What the roles of gla_group_gradients_kernel share: sizes, shared memory and barriers, and where
// a CTA is.
#pragma once

#include "cuda/gla/common/item.cuh"
#include "cuda/gla/groups/params.h"
#include "cuda/parts/barrier.cuh"
#include "cuda/parts/decay.cuh"
#include "cuda/parts/panel.cuh"
#include "cuda/parts/ring.cuh"
#include "cuda/parts/tma.cuh"

namespace tandem::cuda::gla {

/// `kAddsT`: adds to dv and d_log_decay of the parts of K before. `kSplitT`: leaves dq and dk of a
/// part of the heads in fp32.
template <class ElementT, int kKeyDimT, bool kAddsT = false, bool kSplitT = false>
struct GroupConfig {
  using Element = ElementT;
  static constexpr bool kAdds = kAddsT;
  static constexpr bool kSplit = kSplitT;
  static constexpr int kKeyDim = kKeyDimT;  // columns of q and k, padded with zeros
  static constexpr int kKeySteps = kKeyDim / 16;
  static constexpr int kKeyPanels = kKeyDim / kPanelColumns;
  static constexpr int kValueDim = 64;  // columns of v and d_o
  static constexpr int kValueSteps = kValueDim / 16;
  // Of a tile of q or k, and of a state: either has 64 rows.
  static constexpr int kTileBytes = kKeyPanels * panel_bytes(64);

  // Threads of the roles, and registers per thread after setmaxnreg.
  static constexpr int kThreads = 512;
  static constexpr int kRoleThreads = 128;
  static constexpr int kMemoryRegisters = 40;
  static constexpr int kScoreRegisters = 168;
  static constexpr int kGradientRegisters = 192;
  static constexpr int kStateRegisters = 112;
  static_assert(kMemoryRegisters + kScoreRegisters + kGradientRegisters + kStateRegisters <= 512);

  // Named barriers.
  static constexpr int kScoresSync = 1, kGradientsSync = 2, kStateSync = 3;
  static constexpr int kOtherRead = 4;    // `other` of an item is read: scores and state
  static constexpr int kWeightsMade = 5;  // Wt of an item is made: scores and gradients
};

/// Decay factors of a member's chunk; "other" is the other chunk of its pair.
struct alignas(16) GroupDecay {
  float log2_sum[64];        // token j reaches token i with factor 2^(log2_sum[i] - log2_sum[j])
  float from_state[64];      // factor from S before the chunk to token i, and scale
  float from_behind[64];     // factor from dS behind the chunk to token j
  float other_to_state[64];  // factor from the other chunk's tokens to the state between both
  float other_state_to_state;
  float through;  // factor from S before the chunk to what dS behind it is a gradient of
};

template <class Config>
struct GroupShared {
  static constexpr int kStages = 3;
  using Tile = char[Config::kTileBytes];
  using Panel = char[panel_bytes(64)];

  /// What a member adds to a chunk. The state at the pair's far end becomes the one between its
  /// chunks in place. Both states come by one copy.
  struct Stage {
    alignas(1024) Tile state;     // St [V,K] before the chunk, or before its pair
    alignas(1024) Tile gradient;  // dSt [V,K] behind the chunk, or behind its pair
    alignas(1024) Panel v;        // then dv
    alignas(1024) Panel d_o;
    alignas(1024) Panel other;  // v of the chunk before or d_o of the one behind; then earlier dv
  };
  /// What it has beside the panels: decays, and sums for the gradient by the decays.
  struct Tokens {
    GroupDecay decay;
    alignas(16) float log_decay[64];
    alignas(16) float query_state[64];     // a: q . what dq has from S
    alignas(16) float key_state[64];       // b: k . what dk has from dS
    alignas(16) float key_intra[64];       // rows of E, over queries
    alignas(16) float query_intra[4][64];  // columns of E, over a warp's keys
    float flows[32];                       // four lanes' share of <S, dS>
  };

  Stage stages[kStages];
  alignas(1024) Tile q;      // of an item; then dq
  alignas(1024) Tile k;      // then dk
  alignas(1024) Tile other;  // k of the chunk before or q of the one behind; then Wt
  Tokens tokens[kStages];

  // Per member: a stage is filled, with its first one an item's q, k and `other` too; its state
  // between the chunks is made; dv of the parts of K before is there; v is in registers; dv and all
  // sums are made; the sums are read.
  Barrier full[kStages];
  Barrier state_made[kStages];
  Barrier earlier[kStages];
  Barrier values_read[kStages];
  Barrier made[kStages];
  Barrier sums_read[kStages];
  Barrier left;  // dq and dk of an item have left q and k
};

/// A chunk of a group of heads.
struct GroupItem {
  int batch;
  int group;  // of the batch
  int chunk;  // of the sequence

  __device__ int begin() const { return 64 * chunk; }
  /// The head of q and k.
  __device__ int key_head(const GroupBackwardParams& params) const {
    return group >> params.log2_splits;
  }
  /// Whether the chunk is the second one of its pair, which takes S from the first.
  __device__ bool is_second() const { return chunk % 2 == 1; }
  __device__ int other_begin() const { return 64 * (chunk ^ 1); }
  /// The group and the pair, counted in the slab.
  __device__ int group_of_slab(const GroupBackwardParams& params) const {
    return batch * params.problem.forward.HQ + group - params.slab.first_group;
  }
  __device__ int pair_of_slab(const GroupBackwardParams& params) const {
    return (chunk - params.slab.first_segment * params.segment_chunks) / 2;
  }
};

__device__ inline unsigned group_items(const GroupBackwardParams& params) {
  return static_cast<unsigned>(params.slab.groups) * params.slab_chunks;
}

/// Where a member of a group is: a head, and the first of its columns of V.
struct GroupMember {
  int head;
  int column;
};
__device__ inline GroupMember find_member(const GroupBackwardParams& params, int group,
                                          int member) {
  const int shift = params.value_panels - 1;  // of 1 or 2
  const int head = member >> shift, heads = params.members >> shift;
  return {group * heads + head, 64 * (member - (head << shift))};
}

/// Whether a member is the last one of its head.
__device__ inline bool ends_head(const GroupBackwardParams& params, int member) {
  return (~member & (params.value_panels - 1)) == 0;
}

/// Return blockIdx.x and gridDim.x. why by assembly: a value that roles have in common is spilled
/// in some; the latter in one form, while another form spills with the assembly.
__device__ inline unsigned first_item() {
  unsigned item;
  asm volatile("mov.u32 %0, %%ctaid.x;" : "=r"(item));
  return item;
}
template <class Config>
__device__ inline unsigned items_between() {
  if constexpr (!Config::kAdds || !Config::kSplit) return gridDim.x;
  unsigned ctas;
  asm volatile("mov.u32 %0, %%nctaid.x;" : "=r"(ctas));
  return ctas;
}

/// Finds an item. Chunks are innermost: those of a pair read the same states.
__device__ inline GroupItem find_item(const GroupBackwardParams& params, unsigned at) {
  const unsigned chunks = params.slab_chunks, HQ = params.problem.forward.HQ;
  const unsigned of_slab = at / chunks, chunk = at - of_slab * chunks;
  const unsigned of_all = of_slab + params.slab.first_group, batch = of_all / HQ;
  return {static_cast<int>(batch), static_cast<int>(of_all - batch * HQ),
          static_cast<int>(chunk) + params.slab.first_segment * params.segment_chunks};
}

/// Where a role is: the items of a CTA in turn, all members of each.
struct GroupPosition {
  unsigned item = blockIdx.x;
  int member = 0;

  __device__ bool more(const GroupBackwardParams& params) const {
    return item < group_items(params);
  }
  /// Returns whether another item begins.
  template <class Config>
  __device__ bool advance(const GroupBackwardParams& params) {
    if (++member < params.members) return false;
    member = 0;
    item += items_between<Config>();
    return true;
  }
};

}  // namespace tandem::cuda::gla
