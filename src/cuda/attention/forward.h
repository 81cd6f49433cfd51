// The table behind cuda::attention_forward, and its plan, for their tests.
#pragma once

#include <string>
#include <vector>

#include "cuda/attention/forward_params.h"
#include "cuda/attention/operands.h"

namespace tandem::cuda::attention {

/// One way to run a forward. Tried in the table's order.
struct ForwardVariant {
  std::string name;
  DType dtype;
  int key_dim;    // columns of K of a tile
  int value_dim;  // columns of V of a tile
  bool copies;    // what the kernel cannot read or write where it lies
  AttentionForwardLaunch launch;
};

const std::vector<ForwardVariant>& forward_variants();

/// "" when the variant can run the problem, else why not. `misfit` is its operands'.
std::string reason_against(const ForwardVariant& variant, const AttentionForwardProblem& problem,
                           const std::string& misfit);

/// Returns "takes fp16, got bf16", or what the sizes have against any kernel; "" when nothing has.
std::string common_reason(DType dtype, const AttentionSizes& sizes);

/// "attention_forward.sm90.bf16.k128_v128", with ".copied".
std::string variant_name(const char* op, DType dtype, int key_dim, int value_dim, bool copies);

/// Says why head dims do not fit a variant's, "" when they do.
std::string dims_reason(const AttentionSizes& sizes, int key_dim, int value_dim);

}  // namespace tandem::cuda::attention
