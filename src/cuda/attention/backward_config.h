// Tiles, stages, roles and registers of attention_backward_kernel.
#pragma once

#include "cuda/attention/backward_params.h"
#include "cuda/parts/panel.cuh"

namespace tandem::cuda::attention {

/// Which of kColumns columns a warpgroup has: all, or half of them. These are whole panels, or half
/// a panel, or both.
template <int kColumns, bool kHalf>
struct ColumnShare {
  static constexpr int kOwn = kHalf ? kColumns / 2 : kColumns;
  static constexpr int kRest = kHalf && kOwn > kPanelColumns ? kOwn % kPanelColumns : 0;
  static constexpr int kMain = kOwn - kRest;

  /// First columns of a warpgroup's two parts.
  static constexpr int main_column(int warpgroup) {
    return kHalf ? warpgroup * (kColumns - kMain) : 0;
  }
  static constexpr int rest_column(int warpgroup) { return kMain + warpgroup * kRest; }
};

// Named barriers: of the two warpgroups that multiply, and of their turns.
constexpr int kWorkersBarrier = 1;
constexpr int kBackwardTurnBarrier = 2;

template <class ElementT, int kKeyDimT, int kValueDimT>
struct BackwardConfig {
  using Element = ElementT;
  static constexpr int kKeyDim = kKeyDimT;      // columns of q and k, filled up with zeros
  static constexpr int kValueDim = kValueDimT;  // columns of v and d_o
  static constexpr BackwardTile kTile = backward_tile(kKeyDim, kValueDim);
  static constexpr int kKeys = kTile.keys;
  static constexpr int kQueries = kTile.queries;
  // A warpgroup has dk and dv of half of the keys, all columns, and makes the scores of these. Or,
  // where registers do not suffice, of all keys half of the columns, and scores of half of the
  // queries: then the other one needs its P and dS too, and dq is made by a kernel of its own.
  static constexpr bool kSplitColumns = kKeys == 64;
  static constexpr bool kMakesSums = kTile.sum_columns > 0;
  static_assert(kMakesSums != kSplitColumns);
  // Whether dq is multiplied by a third warpgroup: not with 192 columns of k beside 128 keys, whose
  // dk and dv leave no registers for it.
  static constexpr bool kThirdMultiplies = kMakesSums && kKeyDim <= 128;
  // Of q, of this step and others, and of d_o: as many as fit.
  static constexpr int kQueryStages = kMakesSums || kKeyDim > 192 ? 2 : 3;
  static constexpr int kGradientStages = 2;
  static constexpr int kScoreStages = kThirdMultiplies ? 2 : 1;  // of dS

  static constexpr int kKeySteps = kKeyDim / 16;
  static constexpr int kValueSteps = kValueDim / 16;
  static constexpr int kQuerySteps = kQueries / 16;
  static constexpr int kKeyPanels = (kKeyDim + 63) / kPanelColumns;
  static constexpr int kValuePanels = (kValueDim + 63) / kPanelColumns;
  static constexpr int kScoreQueries = kSplitColumns ? kQueries / 2 : kQueries;
  static constexpr int kScores = kScoreQueries / 2;  // a thread's, of 64 keys

  /// First key and query of the scores that a warpgroup makes.
  static constexpr int first_key(int warpgroup) { return kSplitColumns ? 0 : 64 * warpgroup; }
  static constexpr int first_query(int warpgroup) {
    return kSplitColumns ? kScoreQueries * warpgroup : 0;
  }

  // dq of a tile, in halves: 64 queries each, or a share of the columns of 64.
  static constexpr bool kSplitQueries = kQueries == 128;
  using KeyShare = ColumnShare<kKeyDim, kSplitColumns>;      // of dk
  using ValueShare = ColumnShare<kValueDim, kSplitColumns>;  // of dv
  using SumShare = ColumnShare<kTile.sum_columns, !kSplitQueries>;
  static constexpr int kSums = SumShare::kOwn / 2;  // a thread's
  static constexpr int kSumBytes = kQueries * kTile.sum_columns * 4;
  static constexpr int kSumStages = kThirdMultiplies ? 2 : 1;

  /// Where four of a thread's sums lie in those of a tile, in fours.
  static __device__ int place_of_four(int i, int half) {
    return (half * (kSums / 4) + i) * 128 + threadIdx.x % 128;
  }

  // Threads of the roles, and registers per thread after setmaxnreg.
  static constexpr int kWorkers = 256;  // two warpgroups that multiply
  static constexpr int kWorkerWarps = kWorkers / 32;
  static constexpr int kThirdThreads = kThirdMultiplies ? 128 : 0;
  static constexpr int kThirdWarps = kThirdThreads / 32;
  static constexpr int kThreads = 128 + kWorkers + kThirdThreads;
  static constexpr int kSumThreads = kMakesSums ? 3 : 0;  // each of a warp of its own
  static constexpr int kItemSlots = 2;
  static constexpr int kMemoryRegisters = kMakesSums ? 24 : 40;
  static constexpr int kWorkerRegisters = kThirdMultiplies ? 208 : kMakesSums ? 240 : 232;
  static constexpr int kThirdRegisters = 72;
  // why: a warpgroup would wait for ever for registers that the CTA did not begin with.
  static constexpr int kFirstRegisters = 65536 / kThreads / 8 * 8;
  static_assert(128 * kMemoryRegisters + kWorkers * kWorkerRegisters +
                    kThirdThreads * kThirdRegisters <=
                kThreads * kFirstRegisters);

  // attention_backward_rows_kernel: lanes with 8 columns each of a row of o, and threads with 4
  // rows.
  static constexpr int kRowLanes = kValueDim <= 64 ? 8 : kValueDim <= 128 ? 16 : 32;
  static constexpr int kRowsThreads = kQueries * kRowLanes / 4;
};

}  // namespace tandem::cuda::attention
