// Tiles, stages, roles and registers of attention_backward_kernel.
#pragma once

#include "cuda/attention/backward_params.h"
#include "cuda/parts/panel.cuh"

namespace tandem::cuda::attention {

template <class ElementT, int kKeyDimT, int kValueDimT>
struct BackwardConfig {
  using Element = ElementT;
  static constexpr int kKeyDim = kKeyDimT;      // columns of q and k, filled up with zeros
  static constexpr int kValueDim = kValueDimT;  // columns of v and d_o
  static constexpr int kKeys = kBackwardKeys;
  static constexpr int kQueries = backward_queries(kKeyDim);
  // Of 192 columns of k, dk and dv leave registers for one tile of scores, and tiles shared memory
  // for two of q and one of dq: then S waits for all products before it.
  static constexpr bool kWide = kKeyDim > 128;
  static constexpr int kQueryStages = kWide ? 2 : 3;  // q: of this step, and those beside it
  static constexpr int kGradientStages = 2;           // d_o
  static constexpr int kSumStages = kWide ? 1 : 2;    // dq on its way out

  static constexpr int kKeySteps = kKeyDim / 16;
  static constexpr int kValueSteps = kValueDim / 16;
  static constexpr int kQuerySteps = kQueries / 16;
  static constexpr int kKeyPanels = (kKeyDim + 63) / kPanelColumns;
  static constexpr int kValuePanels = (kValueDim + 63) / kPanelColumns;
  static constexpr int kScores = kQueries / 2;  // a thread's, of 64 keys

  // dq of a tile, by warpgroup: 64 queries each, or a share of the columns of 64.
  static constexpr bool kSplitQueries = kQueries == 128;
  static constexpr int kSumDim = backward_sum_dim(kKeyDim);
  static constexpr int kSumColumns = kSplitQueries ? kSumDim : kSumDim / 2;
  // These are columns of whole panels, or half a panel, or both.
  static constexpr int kSumRest = kSumColumns > 64 ? kSumColumns % 64 : 0;
  static constexpr int kSumMain = kSumColumns - kSumRest;
  static constexpr int kSums = kSumColumns / 2;  // a thread's

  /// First columns of a warpgroup's two parts.
  static constexpr int main_column(int warpgroup) {
    return kSplitQueries ? 0 : warpgroup * (kSumDim - kSumMain);
  }
  static constexpr int rest_column(int warpgroup) { return kSumMain + warpgroup * kSumRest; }
  static constexpr int kSumBytes = kQueries * kSumDim * 4;

  // What registers leave room for. dS as dK's operand comes from registers, or, slower, from shared
  // memory. S of the next step is issued with dQ and dK, or once they are done. P of the next step
  // is made while dQ and dK are multiplied, or once dQ is taken.
  static constexpr bool kSharedScores = kWide;
  static constexpr bool kLastScores = kWide;
  static constexpr bool kSumsFirst = kWide || kQueries == 128;

  // Threads of the roles, and registers per thread after setmaxnreg.
  static constexpr int kThreads = 384;
  static constexpr int kWorkers = 256;  // two warpgroups that multiply
  static constexpr int kWorkerWarps = kWorkers / 32;
  static constexpr int kMemoryRegisters = 24;
  static constexpr int kWorkerRegisters = 240;
  // why: a warpgroup would wait for ever for registers that the CTA did not begin with.
  static constexpr int kFirstRegisters = 65536 / kThreads / 8 * 8;
  static_assert((kThreads - kWorkers) * kMemoryRegisters + kWorkers * kWorkerRegisters <=
                kThreads * kFirstRegisters);
};

}  // namespace tandem::cuda::attention
