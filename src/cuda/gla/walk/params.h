// What gla_walk_kernel receives: the checked problem, how it is cut into items, and the tensor
// maps where TMA can be used.
#pragma once

#include <cuda.h>

#include "cuda/gla/common/finite_guard.h"
#include "cuda/gla/common/segments.h"
#include "cuda/gla/common/state_strides.h"
#include "cuda/gla/decay/row_sums.h"
#include "ops/gla_problem.h"

namespace tandem::cuda::gla {

/// A segment of a sequence; segments = 0: none.
struct WalkPiece {
  std::int32_t sequence;
  std::int32_t segment;
  std::int32_t segments;  // of the sequence
};

/// What a CTA tells those of later segments: how it changes the state. Indexed by item.
struct SegmentExchange {
  float* states = nullptr;         // [items, padded K * columns of V], in the order of registers
  float* factors = nullptr;        // [items, warps of the state role]
  std::uint32_t* ready = nullptr;  // [items, warps of the state role]: 0, 1 when both are there
};

/// States that CTAs hand on where they share walks.
struct WalkRelay {
  float* states = nullptr;         // [slots, heads of an item, K, V]
  std::uint32_t* ready = nullptr;  // [slots, warps of the state role]: 0, 1 when its share is there
  SharedWalks shared{};
};

/// Items of a call, (sequence, segment, head or heads walked together, tile of V) from the
/// outermost axis. A CTA begins with the item of its own index; the next one is `gridDim.x`
/// further, or what the ticket says.
struct WalkSchedule {
  int items = 0;
  int walks = 0;  // of a sequence, per tile of V: its heads, or how many times heads together
  int value_tiles = 1;
  int segments = 1;  // per sequence of equal length
  // Of two, chunks of the first, which the second one's CTA reads for its state, too, if it depends
  // on all of them, else fewer; 0: CTAs hand states on.
  int first_chunks = 0;
  // Of packed sequences, [items / H / tiles of V]: each one's segments, when split; then none.
  const WalkPiece* pieces = nullptr;
  const std::int32_t* order = nullptr;  // [N] sequences, longest first; null: as they come
  std::uint32_t* ticket = nullptr;      // items taken so far beyond the first of each CTA
  SegmentExchange exchange;             // when split and handed on
  WalkRelay relay;                      // when CTAs share walks
};

/// One walk. A backward's walks are a forward's over other tensors, some from the last token to the
/// first: `problem` then names them by their roles in the walk (gla/backward.cpp).
struct WalkParams {
  CUtensorMap q_map;
  CUtensorMap k_map;
  CUtensorMap v_map;
  CUtensorMap o_map;
  CUtensorMap x_map;         // of row_sums.x
  bool tma = false;          // the maps are set; else threads copy
  CUtensorMap states_map{};  // of problem.saved_states, where TMA stores them
  bool saves_by_tma = false;
  GlaForwardProblem problem;
  int heads_per_value = 1;       // heads that share a head of v
  StateStrides state_strides{};  // of initial and final states
  WalkSchedule schedule;
  FiniteGuard guard;  // of packed sequences
  RowSumParams row_sums;
  float* wide_output = nullptr;  // [B,T,H,V], of a backward: instead of o
  bool adds = false;             // to wide_output
  // Whether the kernel before this one on the stream is another walk, of which nothing is needed:
  // then only the end of this kernel waits for it.
  bool beside_walk = false;
  StridedTensor value;  // dv of a walk for dk and dv
  CUtensorMap value_map;
};

/// Launches gla_walk_kernel<Config> on `blocks` CTAs; `name` is the variant's, for errors.
/// Instantiated by walk/instances.cuh.
template <class Config>
void launch_walk(const char* name, const WalkParams& params, unsigned blocks, void* stream);

}  // namespace tandem::cuda::gla
