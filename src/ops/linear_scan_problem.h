// What linear_scan's kernels are called with: arguments after every check.
#pragma once

#include "core/strided_tensor.h"
#include "ops/gated_scan_problem.h"

namespace tandem {

/// LinearScanForwardArgs after every check: shapes agree, dtypes and devices fit, nothing overlaps.
struct LinearScanForwardProblem : ScanRecurrence {
  int d = 0;
  TokenTensor u;
  MatrixTensor weight;  // [D,d]
  TokenTensor out;
  float* final_state = nullptr;  // [N,D] or null
  // Kept for the backward, or null.
  TokenTensor x;            // [B,T,D]; outside of all sequences it holds anything
  float* states = nullptr;  // as in ScanGradients
};

/// LinearScanBackwardArgs after every check. Null gradients are not wanted.
struct LinearScanBackwardProblem : ScanGradients {
  LinearScanForwardProblem forward;  // the call that is differentiated, without its outputs
  TokenTensor x;                     // kept by the forward; null: computed again
  TokenTensor du;
  MatrixTensor d_weight;
};

}  // namespace tandem
