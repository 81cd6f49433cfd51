// What the files of gated_output share: its tensors and expectations.
#pragma once

#include <array>
#include <cstdint>
#include <memory>

#include "cli/calls/operation.h"
#include "cli/cases/cases.h"
#include "cli/tensors/tensors.h"
#include "tandem/ops/gated_output.h"

namespace tandem::tools {

/// A case's gates but "none", by the numbers of OutputGate, and its norms, by those of OutputNorm.
inline constexpr std::array kOutputGates = {"plain", "silu", "sigmoid"};
inline constexpr std::array kOutputNorms = {"none", "layer_norm", "rms_norm"};

/// eps of the norm of the sum; that of the group norm is the library's.
inline constexpr double kOutputNormEps = 1e-5;

/// Makes a forward call's tensors, inputs filled.
TensorSet make_gated_output(const Case& one, DType dtype, std::uint64_t seed);
/// Makes a backward call's, with what the forward kept; the forward's inputs and numbers are there
/// too, for the definition.
TensorSet make_gated_output_backward(const Case& one, DType dtype, std::uint64_t seed);
/// Makes those of both in turn: the backward takes what the forward writes.
TensorSet make_gated_output_both(const Case& one, DType dtype, std::uint64_t seed);

std::unique_ptr<Expectation> expect_gated_output(const TensorSet& set, bool sampled);
std::unique_ptr<Expectation> expect_gated_output_backward(const TensorSet& set, bool sampled);

}  // namespace tandem::tools
