// What the GEMM main loop reads, and which tiles it computes.
#pragma once

#include <cuda.h>
#include <cutlass/fast_math.h>

#include <algorithm>
#include <cstdint>
#include <limits>

#include "core/strided_tensor.h"
#include "cuda/gemm/config.h"
#include "cuda/runtime/plan.h"

namespace tandem::cuda::gemm {

/// What tells which tile an index stands for (gemm/schedule.cuh). why on the host: a division by a
/// number that only the device knows takes it a hundred clocks or more, for each tile.
struct TileOrder {
  int count = 0;
  int row_tiles = 0;
  cutlass::FastDivmod per_outer;
  cutlass::FastDivmod per_group;
  cutlass::FastDivmod per_column;       // of a group
  cutlass::FastDivmod per_last_column;  // of the last group
};

/// A and B as tensor maps [B,T,1,columns] of boxes of 64 columns (box_rows_a, box_rows_b), and the
/// product's extents. Either
///   the result's columns come in segments, each with a B of its own: a tile lies in one of them;
///   or the product is a sum of terms, each with an A and a B of its own;
///   or it is a pair of products of one A, of which a tile has the same columns side by side: half
///   of its columns are b[0]'s, the other half b[1]'s, and `columns` counts those of one.
template <int kSegmentsT = 1, int kTermsT = 1, bool kPairedT = false>
struct Operands {
  static constexpr int kSegments = kSegmentsT;
  static constexpr int kTerms = kTermsT;
  static constexpr bool kPaired = kPairedT;
  // Whether the tiles of a row block are computed at the same time, by as many CTAs (schedule.cuh).
  // What is derived may say so: its kernel's CTAs may wait for each other.
  static constexpr bool kWholeRows = false;
  static_assert(kSegments == 1 || kTerms == 1);
  static_assert(!kPaired || kSegments * kTerms == 1);

  CUtensorMap a[kTerms];
  CUtensorMap b[kPaired ? 2 : kSegments * kTerms];
  int depth[kTerms] = {};  // contracted; with kTN tokens are instead
  std::int64_t B = 0;
  std::int64_t T = 0;
  int rows = 0;  // of the result; A's T of each batch row, but with kTN its columns
  int columns[kSegments] = {};
  int tile_columns[kSegments] = {};      // that a tile computes, the last one less
  int tiles_before[kSegments + 1] = {};  // along the columns
  // With kTN: only tokens in [cu_seqlens[0], cu_seqlens[N]) are contracted; null: all.
  const std::int32_t* cu_seqlens = nullptr;
  std::int64_t N = 0;
  // B may be read before the kernel just before on the stream ends: that one is of the same call,
  // has not written it, and lets this one start no earlier than what was before itself has ended.
  bool b_is_there = false;
  cutlass::FastDivmod steps_per_batch;  // with kTN
  TileOrder order;                      // set by launch (gemm/loop.cuh)
  // Of few rows (gemm/few_rows.cuh): where B lies, to ask for it before it may be loaded.
  MatrixTensor b_rows[kPaired ? 2 : kSegments * kTerms] = {};
  // Set by launch_few_rows: whether it asks; rows of a tile, which A's boxes have; and
  // order.per_column by the tiles of a column.
  bool asks_for_b = false;
  int tile_rows = 0;

  /// Sets a segment's columns, after those before it.
  void set_columns(int segment, int count, int per_tile) {
    columns[segment] = count;
    tile_columns[segment] = per_tile;
    for (int i = segment; i < kSegments; ++i) {
      tiles_before[i + 1] = tiles_before[segment] + (count + per_tile - 1) / per_tile;
    }
  }

  /// Sets the tokens that kTN contracts.
  void set_tokens(std::int64_t batch, std::int64_t tokens) {
    B = batch;
    T = tokens;
    const std::int64_t per_batch = std::max<std::int64_t>(ceil_div(tokens, kTileDepth), 1);
    steps_per_batch = cutlass::FastDivmod(static_cast<int>(per_batch));
  }

  /// Steps of a tile's term.
  std::int64_t steps(Layout layout, int term) const {
    return layout == Layout::kTN ? B * steps_per_batch.divisor : ceil_div(depth[term], kTileDepth);
  }
};
using PairedOperands = Operands<1, 1, true>;

/// A 16-bit matrix of the result's shape that is added to the fp32 products: the member `addend` of
/// what is derived of Operands. Its map has boxes of 64 rows and columns.
struct Addend {
  CUtensorMap map;
  bool is_there = false;
};
template <class Operands>
concept HasAddend = requires(const Operands& operands) {
  operands.addend;
};

/// The last tiles of a product, each cut into parts of its depth (split-K) where whole ones would
/// leave multiprocessors without work: the member `tail` of what is derived of Operands. Parts
/// leave partial sums, which sum_tail (gemm/tail.cuh) adds up in their order.
template <int kTerms>
struct Tail {
  int first = std::numeric_limits<int>::max();  // of its tiles
  int tiles = 0;
  int parts = 0;  // of a tile
  int steps_per_part = 0;
  int steps_before[kTerms] = {};  // of a term, in the terms before it
  cutlass::FastDivmod per_part;   // tiles
  float* partial_sums = nullptr;  // [parts,tiles,128,columns of a tile], as fragments lie
};
template <class Operands>
concept HasTail = requires(const Operands& operands) {
  operands.tail;
};

/// Lets a product begin on multiprocessors that the kernel before it on the stream leaves free: the
/// member `beside` of what is derived of Operands. That kernel is of the same call, this one reads
/// nothing that it writes, and it has called follow_stream() before anything else.
struct Beside {
  bool is_so = false;
  int early_ctas = 0;   // the first ones, which begin before the others
  int early_tiles = 0;  // that these take before all CTAs share what is left
};
template <class Operands>
concept HasBeside = requires(const Operands& operands) {
  operands.beside;
};
template <class Operands>
__host__ __device__ bool runs_beside(const Operands& operands) {
  if constexpr (HasBeside<Operands>) return operands.beside.is_so;
  return false;
}

/// Cuts the last `tiles` tiles of the operands' product, whose depths are set.
template <class Operands>
void cut_tail(Operands& operands, Layout layout, std::int64_t tiles, int parts,
              float* partial_sums) {
  if (tiles == 0) return;
  auto& tail = operands.tail;
  std::int64_t steps = 0;
  for (int term = 0; term < Operands::kTerms; ++term) {
    tail.steps_before[term] = static_cast<int>(steps);
    steps += operands.steps(layout, term);
  }
  const std::int64_t all =
      ceil_div(operands.rows, kTileRows) * std::int64_t{operands.tiles_before[Operands::kSegments]};
  tail.first = static_cast<int>(all - tiles);
  tail.tiles = static_cast<int>(tiles);
  tail.parts = parts;
  tail.steps_per_part = static_cast<int>(ceil_div(steps, parts));
  tail.per_part = cutlass::FastDivmod(tail.tiles);
  tail.partial_sums = partial_sums;
}

}  // namespace tandem::cuda::gemm
