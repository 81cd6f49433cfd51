// gla for the tools, split over gla.cpp (file, call, cost), gla_make.cpp, gla_expect.cpp,
// gla_unfused.cpp; gla_backward.cpp and gla_backward_expect.cpp for the direction "backward",
// gla_forward_backward.cpp for the two in turn, gla_state.cpp for "state",
// gla_state_backward.cpp for "state_backward", gla_step.cpp for "step".
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "cli/calls/operation.h"
#include "ops/gla.h"

namespace tandem::tools {

TensorSet make_gla(const Case& one, DType dtype, std::uint64_t seed);
TensorSet make_gla_state(const Case& one, DType dtype, std::uint64_t seed);
TensorSet make_gla_step(const Case& one, DType dtype, std::uint64_t seed);
std::unique_ptr<Expectation> expect_gla(const TensorSet& set, bool sampled);
std::unique_ptr<Expectation> expect_gla_step(const TensorSet& set, bool sampled);

/// Returns the strides of an activation [B,T,heads,D] of a case.
Dims activation_strides(Strides kind, const Dims& shape, bool output);

TensorSet make_gla_backward(const Case& one, DType dtype, std::uint64_t seed);
std::unique_ptr<Expectation> expect_gla_backward(const TensorSet& set, bool sampled);
GlaBackwardProblem host_backward_problem(const TensorSet& set);

/// Makes the checked problem with each buffer of the set at `bases[i]` on `device`.
GlaForwardProblem problem_at(const TensorSet& set, const std::vector<void*>& bases, Device device);

/// Makes the checked problem over the set's own buffers, to be read only.
GlaForwardProblem host_problem(const TensorSet& set);

/// The baseline of bench/cuda/gla.h, in gla_unfused.cpp.
void unfused_gla(const TensorSet& set, const std::vector<void*>& bases, Device device,
                 const Context& context);
std::size_t unfused_gla_workspace_bytes(const TensorSet& set, const std::vector<void*>& bases,
                                        Device device);

/// Tokens [begin,end) of a sequence: cu_seqlens clamped into [0,T].
struct TokenRange {
  std::int64_t begin = 0;
  std::int64_t end = 0;
};
TokenRange tokens_of(const GlaRecurrence& recurrence, std::int64_t n);
/// Number of tokens of all sequences together.
double token_count(const GlaRecurrence& recurrence);

/// Chooses the sequences and heads to compare, as n * H + h: all or, with `sampled`, the first, the
/// last and some between, about a second of work on two cores.
std::vector<std::int64_t> heads_to_check(const GlaRecurrence& recurrence, bool sampled);

/// Returns "B4 T1024 H32 K64 V64".
std::string gla_shape(const Dims& keys, const Dims& values);

}  // namespace tandem::tools
