// What the files of rms_norm_gemm share: its tensors and expectations. Segments of a case are those
// of projection, with heads instead of activations.
#pragma once

#include <cstdint>
#include <memory>

#include "cli/calls/operation.h"
#include "cli/cases/cases.h"
#include "cli/tensors/tensors.h"

namespace tandem::tools {

/// Makes a forward call's tensors, inputs filled.
TensorSet make_rms_norm_gemm(const Case& one, DType dtype, std::uint64_t seed);
/// Makes a backward call's; the forward's inputs and numbers are there too, for the definition.
TensorSet make_rms_norm_gemm_backward(const Case& one, DType dtype, std::uint64_t seed);
/// Makes those of both in turn: the backward takes what the forward writes.
TensorSet make_rms_norm_gemm_both(const Case& one, DType dtype, std::uint64_t seed);

std::unique_ptr<Expectation> expect_rms_norm_gemm(const TensorSet& set, bool sampled);
std::unique_ptr<Expectation> expect_rms_norm_gemm_backward(const TensorSet& set, bool sampled);

}  // namespace tandem::tools
