// Stages and threads of attention_weights' backward kernels.
#pragma once

#include <algorithm>

#include "cuda/parts/panel.cuh"
#include "cuda/runtime/plan.h"

namespace tandem::cuda::attention_weights {

/// `kColumns` of a gradient are made at a time, 64 of its rows by each warpgroup.
template <class ElementT, int kColumnsT>
struct BackwardConfig {
  using Element = ElementT;
  static constexpr int kColumns = kColumnsT;
  static constexpr int kPanels = kColumns / kPanelColumns;
  static constexpr int kGroups = 2;
  static constexpr int kRows = 64 * kGroups;

  // A warpgroup that loads, then those that multiply; registers per thread after setmaxnreg.
  static constexpr int kThreads = 128 * (1 + kGroups);
  static constexpr int kLoadRegisters = 24;
  static constexpr int kWorkerRegisters = 240;

  // Weights and their gradients for each warpgroup, and rows of the other tensor for both. As many
  // stages as there is room for: this is what is on its way from memory.
  static constexpr int kStageBytes = (2 * kGroups + kPanels) * panel_bytes(64);
  static constexpr int kStages = std::min(5, (kSharedMemoryPerBlock - 2048) / kStageBytes);
};

/// Two sums of products are kept for dq, so that 128 columns are what registers have room for.
template <class Element, int kKeyDim>
using QueriesConfig = BackwardConfig<Element, std::min(kKeyDim, 128)>;
template <class Element, int kKeyDim>
using KeysConfig = BackwardConfig<Element, kKeyDim>;

}  // namespace tandem::cuda::attention_weights
