// The tables behind cuda::attention_weights_forward and attention_weights_backward: rows and
// choice are attention's, of calls without values.
#pragma once

#include <vector>

#include "cuda/attention/variants.h"
#include "cuda/attention_weights/backward_params.h"
#include "cuda/attention_weights/forward_params.h"
#include "cuda/runtime/tensor_map.h"
#include "ops/attention_weights.h"

namespace tandem::cuda::attention_weights {

using ForwardVariant = attention::Variant<ForwardKernel>;
using BackwardVariant = attention::Variant<BackwardLaunch>;

const std::vector<ForwardVariant>& forward_variants();
const std::vector<BackwardVariant>& backward_variants();

/// Extents of the tensors of a call. Rows of w are queries.
struct Extents {
  explicit Extents(const AttentionSizes& p)
      : q{p.B, p.TQ, p.H, p.K}, k{p.B, p.TK, p.HKV, p.K}, w{p.B, p.TQ, p.H, p.TK} {}

  TileExtents q, k, w;
};

}  // namespace tandem::cuda::attention_weights
