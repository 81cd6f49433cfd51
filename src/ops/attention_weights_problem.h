// What attention_weights' kernels are called with: arguments after every check.
#pragma once

#include "core/strided_tensor.h"
#include "ops/attention_problem.h"

namespace tandem {

/// AttentionWeightsForwardArgs after every check. Of its sizes V is 0, and there are no lists of
/// lengths. Rows of w are queries: its time axis is TQ, its innermost TK.
struct AttentionWeightsForwardProblem : AttentionSizes {
  StridedTensor q;  // [B,TQ,H,K]
  StridedTensor k;  // [B,TK,HKV,K]
  StridedTensor w;  // [B,H,TQ,TK]
};

/// AttentionWeightsBackwardArgs after every check. Null gradients are not wanted.
struct AttentionWeightsBackwardProblem {
  AttentionWeightsForwardProblem forward;  // the call that is differentiated, with its output
  StridedTensor d_w;                       // as w
  StridedTensor dq;
  StridedTensor dk;
};

}  // namespace tandem
