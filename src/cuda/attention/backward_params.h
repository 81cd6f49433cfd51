// What the kernels of attention's backward receive, and their workspace. What the host fills in:
// the maps, the problem, and the pointers into the workspace, whose parts `plan_backward_workspace`
// lays out.
#pragma once

#include <cuda.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "cuda/runtime/plan.h"
#include "ops/attention_problem.h"

namespace tandem::cuda::attention {

/// What a CTA multiplies in one step.
struct BackwardTile {
  int queries;      // rows of the boxes of q's and d_o's maps
  int keys;         // of a block: rows of the boxes of k's and v's maps
  int sum_columns;  // of dq's sums: whole panels; 0 where a kernel of its own makes dq
};

/// The tile for head dims of K and V, as instantiated.
constexpr BackwardTile backward_tile(int key_dim, int value_dim) {
  const bool wide = value_dim > 128;
  return {key_dim <= 64 ? 128 : 64, wide ? 64 : 128, wide ? 0 : (key_dim + 63) / 64 * 64};
}

/// Into how many parts the work on a key head's blocks is cut: each has some of the heads that read
/// it and, of every sequence, some of the tiles of queries.
struct BackwardParts {
  int heads = 1;
  int tiles = 1;

  constexpr int count() const { return heads * tiles; }
};

/// Blocks of `rows` tokens in all sequences of `tokens`, at most. A packed sequence n begins with
/// block cu_seqlens[n] / rows + n, so that none shares a block and nothing has to be summed up.
inline std::int64_t backward_blocks(std::int64_t tokens, std::int64_t sequences, bool packed,
                                    int rows) {
  return packed ? tokens / rows + sequences : ceil_div(tokens, rows) * sequences;
}

/// Queries of a tile where a kernel of its own makes dq: two of BackwardTile's.
constexpr int kWideQueries = 128;

struct AttentionBackwardParams {
  // Boxes of 64 columns (plan_tile) by the tile's rows. Strides and addresses of dq, dk and dv are
  // multiples of 16 bytes.
  CUtensorMap q_map;
  CUtensorMap k_map;
  CUtensorMap v_map;
  CUtensorMap d_o_map;
  // Window sides that are unlimited, or wider than all tokens, are TQ + TK; these are below 2^29.
  AttentionBackwardProblem problem;

  int multiprocessors = 0;
  int query_tiles = 0;     // of a head, in all sequences
  int key_blocks = 0;      // of a key head, in all sequences
  BackwardParts parts;     // each with items of its own
  int part_tiles = 0;      // tiles of a sequence that are a part's; the last has the rest
  int heads_together = 1;  // parts of key heads that go side by side, if not packed
  // The order of a block's steps (BackwardStep). Tile by tile where all blocks begin at the last
  // tile: of each head, blocks that see few tiles would wait there for the first block, which comes
  // by once in a head. In windows blocks begin at tiles of their own, and head by head they read
  // one head's queries while the L2 holds them.
  bool head_by_head = false;

  // The workspace. Per head [H, query_tiles, ...], with the tile's R queries:
  float* log_sum_exp = nullptr;      // [R] in base 2; inf where P is 0
  float* row_products = nullptr;     // [R] o . d_o - d_log_sum_exp
  float* dq_sums = nullptr;          // [R, sum_columns] in the order of accumulators
  std::uint32_t* turns = nullptr;    // key blocks that have added to the tile of dq_sums
  std::uint32_t* tickets = nullptr;  // items that are taken
  // Where there are parts: what each has of dk, without the scale, and of dv, [parts,B,TK,HKV,
  // columns filled up to a multiple of 8].
  float* key_parts = nullptr;
  float* value_parts = nullptr;

  /// Heads of a part; the last may have fewer.
  constexpr int part_heads() const {
    const AttentionForwardProblem& p = problem.forward;
    return (p.H / p.HKV + parts.heads - 1) / parts.heads;
  }
};

/// Offsets of the workspace's parts from its begin, and its size.
struct BackwardWorkspace {
  std::size_t log_sum_exp;
  std::size_t row_products;
  std::size_t dq_sums;
  std::size_t turns;
  std::size_t tickets;
  std::size_t key_parts;
  std::size_t value_parts;
  std::size_t bytes;
};

inline BackwardWorkspace plan_backward_workspace(const AttentionForwardProblem& problem,
                                                 const BackwardTile& tile,
                                                 const BackwardParts& cut) {
  const int rows = tile.queries;
  const std::int64_t tiles =
      problem.H * backward_blocks(problem.TQ, problem.N, problem.cu_seqlens_q != nullptr, rows);
  BackwardWorkspace parts{};
  WorkspaceLayout layout;
  parts.log_sum_exp = layout.add(tiles * rows * 4);
  parts.row_products = layout.add(tiles * rows * 4);
  parts.dq_sums = layout.add(tiles * rows * tile.sum_columns * 4);
  parts.turns = layout.add(tiles * 4);
  parts.tickets = layout.add(4);
  if (cut.count() > 1) {
    const std::int64_t rows_of_parts = cut.count() * problem.B * problem.TK * problem.HKV;
    parts.key_parts = layout.add(rows_of_parts * ceil_div(problem.K, 8) * 32);
    parts.value_parts = layout.add(rows_of_parts * ceil_div(problem.V, 8) * 32);
  }
  parts.bytes = layout.bytes();
  return parts;
}

/// Fills in everything but the maps: the problem, counts and pointers into `workspace`.
inline void set_backward_params(AttentionBackwardParams& params,
                                const AttentionBackwardProblem& problem, const BackwardTile& tile,
                                const BackwardParts& cut, int multiprocessors, void* workspace) {
  params.problem = problem;
  params.multiprocessors = multiprocessors;
  params.parts = cut;
  AttentionForwardProblem& forward = params.problem.forward;
  const std::int64_t wide = forward.TQ + forward.TK;
  for (std::int64_t* side : {&forward.mask.left, &forward.mask.right}) {
    *side = *side == AttentionMask::kUnlimited ? wide : std::min(*side, wide);
  }
  const bool packed = forward.cu_seqlens_q != nullptr;
  params.query_tiles =
      static_cast<int>(backward_blocks(forward.TQ, forward.N, packed, tile.queries));
  // Of packed sequences as if all were equal.
  params.part_tiles = static_cast<int>(
      ceil_div(ceil_div(params.query_tiles, std::max<std::int64_t>(forward.N, 1)), cut.tiles));
  params.key_blocks = static_cast<int>(backward_blocks(forward.TK, forward.N, packed, tile.keys));
  // Key blocks of one head read q and d_o, and add to dq, one soon behind the other: what one
  // brings into the L2 cache serves the next. So few heads are worked on side by side, but as many
  // as fit the cache, and enough for their blocks not to wait long for their first turn: a step per
  // block before them, of all the steps that a multiprocessor has. These may be more than fit, but
  // not so many that each block walks alone.
  constexpr std::int64_t kCacheBytes = 24 << 20, kPatience = 128, kBlocksBeside = 4;
  const std::int64_t head_bytes = (forward.HKV > 0 ? params.part_heads() : 1) * forward.TQ *
                                  (2 * forward.K + 2 * forward.V + 4 * tile.sum_columns) /
                                  cut.tiles;
  const std::int64_t steps =
      params.key_blocks * forward.H * ceil_div(forward.TQ, tile.queries) / multiprocessors;
  const std::int64_t patient =
      std::min<std::int64_t>(multiprocessors * kPatience / std::max<std::int64_t>(steps, 1),
                             multiprocessors / kBlocksBeside);
  const std::int64_t together =
      std::max({std::int64_t{1}, kCacheBytes / std::max<std::int64_t>(head_bytes, 1), patient});
  // As many in each turn: with a causal mask a short last one leaves multiprocessors idle.
  const std::int64_t heads = std::max<std::int64_t>(forward.N * forward.HKV * cut.count(), 1);
  params.heads_together =
      static_cast<int>(ceil_div(heads, std::max<std::int64_t>(heads / together, 1)));
  // why all windows of packed calls: a sequence's sums must not depend on the others' lengths.
  const std::int64_t left = problem.forward.mask.left;
  params.head_by_head = left != AttentionMask::kUnlimited && (packed || left < forward.TK);
  const BackwardWorkspace parts = plan_backward_workspace(forward, tile, cut);
  const auto at = [&](std::size_t offset) { return static_cast<char*>(workspace) + offset; };
  params.log_sum_exp = reinterpret_cast<float*>(at(parts.log_sum_exp));
  params.row_products = reinterpret_cast<float*>(at(parts.row_products));
  params.dq_sums = reinterpret_cast<float*>(at(parts.dq_sums));
  params.turns = reinterpret_cast<std::uint32_t*>(at(parts.turns));
  params.tickets = reinterpret_cast<std::uint32_t*>(at(parts.tickets));
  params.key_parts = reinterpret_cast<float*>(at(parts.key_parts));
  params.value_parts = reinterpret_cast<float*>(at(parts.value_parts));
}

/// Launches the backward's kernels; `name` is the variant's, for errors. Instantiated by
/// attention/backward_instances.cuh.
template <class Element, int kKeyDim, int kValueDim>
void launch_attention_backward(const char* name, const AttentionBackwardParams& params,
                               void* stream);
using AttentionBackwardLaunch = void (*)(const char* name, const AttentionBackwardParams& params,
                                         void* stream);

}  // namespace tandem::cuda::attention
