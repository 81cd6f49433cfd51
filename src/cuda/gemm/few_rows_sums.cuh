// The end of a product of few rows (gemm/few_rows.cuh): the parts of a tile are added, and its rows
// lie in shared memory for an epilogue.
//
// Each CTA of a cluster finishes eight rows in turn: the others send it their sums of these, which
// it adds in the parts' order. A thread then has a few columns of each eighth row. What it does
// with a row is chosen before all of them: branches take a row longer than its values, 1 to 2 us of
// a kernel (docs/ops/projection.log.md).
#pragma once

#include "cuda/gemm/few_rows_config.h"
#include "cuda/parts/cluster.cuh"
#include "cuda/parts/fragment.cuh"
#include "cuda/parts/ring.cuh"

namespace tandem::cuda::gemm {

/// A CTA's stages, and once these have been read a tile's sums in their place.
template <class Config>
struct FewRowsShared {
  alignas(1024) char stages[Config::kStageBytes];
  Ring<FewRowsStages::kMost> ring;
  Barrier others_full;

  using Row = float[Config::kRowFloats];
  using Group = float4[Config::kProductThreads];
  __device__ Row* rows() { return reinterpret_cast<Row*>(stages); }
  template <int kParts>
  __device__ Group* others() {
    return reinterpret_cast<Group*>(stages + Config::others_at(kParts));
  }
};

/// The part of a tile that a CTA contracts, in steps of 64.
struct FewRowsTile {
  int segment;
  int column;
  int columns;  // that are loaded, of each of a pair of products
  int row;
  int rows;
  int part;  // which of how many
  int parts;
  int begin;
  int end;
  // What the calling thread finishes: its columns of each `next_row`'th row of the tile.
  int thread_column;  // of the segment: the first
  int thread_row;     // of the tile: the first
  int next_row;
};

/// A thread's four values of a row of the product: of neighbouring columns, or of a pair of
/// products two of each. Of tiles of 128 columns a warp has a row.
struct RowPiece {
  float (&values)[4];
  int row;
  int column;  // of the segment: the first
};

/// Where the columns of a row lie in a tile that a thread finishes.
template <class Config, bool kPaired>
__device__ int column_of_thread() {
  return (kPaired ? 2 : 4) * static_cast<int>(threadIdx.x % (Config::kTileColumns / 4));
}

/// Keeps a value in registers. why: a parameter found by a segment's number would be read anew for
/// each row, a chain of 400 clocks.
template <class Value>
__device__ Value in_registers(const Value& value) {
  struct Words {
    std::uint32_t word[sizeof(Value) / 4];
  };
  static_assert(sizeof(Words) == sizeof(Value));
  auto words = __builtin_bit_cast(Words, value);
#pragma unroll
  for (std::uint32_t& word : words.word) asm volatile("" : "+r"(word));
  return __builtin_bit_cast(Value, words);
}

/// The sums of a thread of the products, as wgmma's fragments lie: four of each kRowsAtOnce rows.
template <class Config>
using FewRowsSums = float[Config::kGroups][4];

/// Leaves the sums of the rows that this CTA finishes in shared memory, of the index'th tile. Of
/// the kParts CTAs that contract a tile each finishes a group of rows in turn: the others send it
/// theirs of these, and it adds all in the parts' order. Threads of the products; warps without
/// columns send nothing. why sent: a read of another CTA's shared memory takes its way twice.
template <class Config, bool kPaired, int kParts>
__device__ void leave_rows(FewRowsShared<Config>& shared, const FewRowsTile& tile, int index,
                           const FewRowsSums<Config>& sums) {
  const int rank = kParts > 1 ? tile.part : 0;
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const int warps = (tile.columns + 15) / 16;  // that have columns, of each of a pair
  const bool has_columns = (kPaired ? warp % 4 : warp) < warps;
  constexpr int kGroups = Config::kGroups, kMost = Config::groups_of(kParts);
  const int all_groups = (tile.rows + kRowsAtOnce - 1) / kRowsAtOnce;
  const int groups = has_columns ? all_groups : 0;  // the calling thread's
  const auto others = shared.template others<kParts>();
  if constexpr (kParts > 1) {
    if (threadIdx.x == 0) {
      const int own = (all_groups - rank + kParts - 1) / kParts;
      shared.others_full.arrive_and_expect((kParts - 1) * own * (kPaired ? 2 : 1) * warps * 32 *
                                           sizeof(float4));
    }
    sync_cluster_relaxed();  // all have read their stages, or what they had of the tile before
#pragma unroll
    for (int group = 0; group < kGroups; ++group) {
      const int to = group % kParts;
      if (group >= groups || to == rank) continue;
      const int place = (rank - (rank > to ? 1 : 0)) * kMost + group / kParts;
      send_to_cluster(&others[place][threadIdx.x], shared.others_full, to, sums[group]);
    }
    shared.others_full.wait(index % 2);
  } else {
    cutlass::arch::NamedBarrier::sync(Config::kProductThreads, kRowsBarrier);
  }
  // why one offset, held: found for each group it would take longer than the group's sums.
  constexpr int kRowFloats = Config::kRowFloats;
  const int column = static_cast<int>(threadIdx.x) / 128 * 64 + fragment_row();
  const int first = in_registers(fragment_column(0) * kRowFloats + column);
  float* const rows = &shared.rows()[0][0];
#pragma unroll
  for (int group = 0; group < kGroups; ++group) {
    const int finisher = group % kParts;
    if (group >= groups || finisher != rank) continue;
    float sum[4];
#pragma unroll
    for (int part = 0; part < kParts; ++part) {
      const float* piece = sums[group];
      float4 other;
      if (part != finisher) {
        other = others[(part - (part > finisher ? 1 : 0)) * kMost + group / kParts][threadIdx.x];
        piece = &other.x;
      }
#pragma unroll
      for (int i = 0; i < 4; ++i) sum[i] = part == 0 ? piece[i] : sum[i] + piece[i];
    }
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      rows[first + (group / kParts * kRowsAtOnce + i % 2) * kRowFloats + i / 2 * 8] = sum[i];
    }
  }
  cutlass::arch::NamedBarrier::sync(Config::kProductThreads, kRowsBarrier);
}

/// The same, of as many parts as the tile has.
template <class Config, bool kPaired>
__device__ void leave_rows(FewRowsShared<Config>& shared, const FewRowsTile& tile, int index,
                           const FewRowsSums<Config>& sums) {
  static_assert(kMostFewRowsParts == 4);
  switch (tile.parts) {
    case 1: return leave_rows<Config, kPaired, 1>(shared, tile, index, sums);
    case 2: return leave_rows<Config, kPaired, 2>(shared, tile, index, sums);
    case 3: return leave_rows<Config, kPaired, 3>(shared, tile, index, sums);
    default: leave_rows<Config, kPaired, 4>(shared, tile, index, sums);
  }
}

/// The rows that the calling thread finishes, as leave_rows left them. Threads of the products.
template <class Config, bool kPaired>
struct RowsLeft {
  FewRowsShared<Config>& shared;
  const FewRowsTile& tile;

  /// Calls finish(piece) for each, some of them together. why: alone it waits for its sums.
  template <int kMostTogether = 4, class Finish>
  __device__ void each(const Finish& finish) const {
    constexpr int kTogether = std::min(Config::kGroups, kMostTogether);
#pragma unroll 1
    for (int first = 0; row(first) < tile.rows; first += kTogether) {
      float4 sums[kTogether];
#pragma unroll
      for (int i = 0; i < kTogether; ++i) sums[i] = sums_of(min(first + i, Config::kGroups - 1));
#pragma unroll
      for (int i = 0; i < kTogether; ++i) {
        if (row(first + i) < tile.rows) finish_one(first + i, sums[i], finish);
      }
    }
  }

  /// The same with finish(piece, load(row)): what is loaded for rows is under way together, too.
  template <int kMostTogether, class Load, class Finish>
  __device__ void each_loaded(const Load& load, const Finish& finish) const {
    constexpr int kTogether = std::min(Config::kGroups, kMostTogether);
#pragma unroll 1
    for (int first = 0; row(first) < tile.rows; first += kTogether) {
      decltype(load(0)) loaded[kTogether];
#pragma unroll
      for (int i = 0; i < kTogether; ++i) {
        loaded[i] = load(tile.row + min(row(first + i), tile.rows - 1));
      }
#pragma unroll
      for (int i = 0; i < kTogether; ++i) {
        if (row(first + i) >= tile.rows) continue;
        finish_one(first + i, sums_of(first + i), finish, loaded[i]);
      }
    }
  }

  /// Calls finish(piece, i) for the i'th, which the compiler knows.
  template <class Finish>
  __device__ void each_counted(const Finish& finish) const {
#pragma unroll
    for (int i = 0; i < Config::kGroups; ++i) {
      if (row(i) < tile.rows) finish_one(i, sums_of(i), finish, i);
    }
  }

 private:
  __device__ int row(int i) const { return tile.thread_row + i * tile.next_row; }
  __device__ float4 sums_of(int i) const {
    const int left = kRowsAtOnce * i + static_cast<int>(threadIdx.x) / (Config::kTileColumns / 4);
    const float* from = &shared.rows()[left][column_of_thread<Config, kPaired>()];
    if constexpr (!kPaired) return *reinterpret_cast<const float4*>(from);
    const float2 first = *reinterpret_cast<const float2*>(from);
    const float2 second = *reinterpret_cast<const float2*>(from + Config::kTileColumns / 2);
    return {first.x, first.y, second.x, second.y};
  }
  template <class Finish, class... More>
  __device__ void finish_one(int i, float4 sum, const Finish& finish, const More&... more) const {
    float values[4] = {sum.x, sum.y, sum.z, sum.w};
    finish(RowPiece{values, tile.row + row(i), tile.thread_column}, more...);
  }
};

}  // namespace tandem::cuda::gemm
