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
  static constexpr int kQueryStages = 3;     // q: of this step, of the one before and the next
  static constexpr int kGradientStages = 2;  // d_o
  static constexpr int kSumStages = 2;       // dq on its way out

  static constexpr int kKeySteps = kKeyDim / 16;
  static constexpr int kValueSteps = kValueDim / 16;
  static constexpr int kQuerySteps = kQueries / 16;
  static constexpr int kKeyPanels = (kKeyDim + 63) / kPanelColumns;
  static constexpr int kValuePanels = (kValueDim + 63) / kPanelColumns;
  static constexpr int kScores = kQueries / 2;  // a thread's, of 64 keys

  // dq of a tile, by warpgroup: 64 queries each, or a share of the columns of 64.
  static constexpr bool kSplitQueries = kQueries == 128;
  static constexpr int kSumColumns = kSplitQueries ? kKeyDim : kKeyDim / 2;
  static constexpr int kSums = kSumColumns / 2;  // a thread's
  static constexpr int kSumBytes = kQueries * kKeyDim * 4;

#ifndef EARLY
#define EARLY 1
#endif
#ifndef SHARED_DS
#define SHARED_DS 0
#endif
  static constexpr bool kEarlyScores = EARLY;
  static constexpr bool kSharedScores = SHARED_DS;
  // Threads of the roles, and registers per thread after setmaxnreg.
  static constexpr int kThreads = 384;
  static constexpr int kWorkers = 256;  // two warpgroups that multiply
  static constexpr int kWorkerWarps = kWorkers / 32;
  static constexpr int kMemoryRegisters = 32;
  static constexpr int kWorkerRegisters = 240;
};

}  // namespace tandem::cuda::attention
