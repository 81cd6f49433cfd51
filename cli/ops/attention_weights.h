// attention_weights' entries, in attention_weights.cpp; tensors of a case in attention_make.cpp,
// definitions in attention_weights_expect.cpp.
#pragma once

#include <cstdint>
#include <memory>

#include "cli/calls/operation.h"
#include "ops/attention_weights.h"

namespace tandem::tools {

TensorSet make_attention_weights(const Case& one, DType dtype, std::uint64_t seed);
TensorSet make_attention_weights_backward(const Case& one, DType dtype, std::uint64_t seed);
TensorSet make_attention_weights_both(const Case& one, DType dtype, std::uint64_t seed);

std::unique_ptr<Expectation> expect_attention_weights(const TensorSet& set, bool sampled);
std::unique_ptr<Expectation> expect_attention_weights_backward(const TensorSet& set, bool sampled);

}  // namespace tandem::tools
