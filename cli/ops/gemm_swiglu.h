// What the files of gemm_swiglu share: its tensors and expectations.
#pragma once

#include <array>
#include <cstdint>
#include <memory>

#include "cli/calls/operation.h"
#include "cli/cases/cases.h"
#include "cli/tensors/tensors.h"
#include "tandem/ops/gemm_swiglu.h"

namespace tandem::tools {

/// A case's activations, by the numbers of GateActivation.
inline constexpr std::array kGateActivations = {"silu", "gelu", "gelu_tanh", "relu"};

/// eps of a norm where rstd is computed.
inline constexpr double kNormEps = 1e-5;

/// Makes a forward call's tensors, inputs filled.
TensorSet make_gemm_swiglu(const Case& one, DType dtype, std::uint64_t seed);
/// Makes a backward call's, with what the forward kept; the forward's inputs and numbers are there
/// too, for the definition.
TensorSet make_gemm_swiglu_backward(const Case& one, DType dtype, std::uint64_t seed);
/// Makes those of both in turn: the backward takes what the forward writes.
TensorSet make_gemm_swiglu_both(const Case& one, DType dtype, std::uint64_t seed);

std::unique_ptr<Expectation> expect_gemm_swiglu(const TensorSet& set, bool sampled);
std::unique_ptr<Expectation> expect_gemm_swiglu_backward(const TensorSet& set, bool sampled);

}  // namespace tandem::tools
