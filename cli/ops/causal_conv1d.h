// What causal_conv1d's files here share.
#pragma once

#include <memory>

#include "cli/calls/operation.h"
#include "cli/cases/cases.h"
#include "cli/tensors/tensors.h"

namespace tandem::tools {

/// Makes the tensors of a call, inputs filled.
TensorSet make_causal_conv1d(const Case& one, DType dtype, std::uint64_t seed);
TensorSet make_causal_conv1d_backward(const Case& one, DType dtype, std::uint64_t seed);
TensorSet make_causal_conv1d_step(const Case& one, DType dtype, std::uint64_t seed);

std::unique_ptr<Expectation> expect_causal_conv1d(const TensorSet& set, bool sampled);
std::unique_ptr<Expectation> expect_causal_conv1d_backward(const TensorSet& set, bool sampled);
std::unique_ptr<Expectation> expect_causal_conv1d_step(const TensorSet& set, bool sampled);

}  // namespace tandem::tools
