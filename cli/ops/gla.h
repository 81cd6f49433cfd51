// gla's entries, split over gla.cpp (entries, costs), gla_make.cpp (tensors of a case),
// gla_expect.cpp, gla_backward_expect.cpp, gla_state_expect.cpp and gla_step_expect.cpp
// (definitions).
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "cli/calls/operation.h"
#include "ops/gla.h"

namespace tandem::tools {

TensorSet make_gla(const Case& one, DType dtype, std::uint64_t seed);
TensorSet make_gla_backward(const Case& one, DType dtype, std::uint64_t seed);
/// Makes those of a backward that takes what the forward before it writes.
TensorSet make_gla_second(const Case& one, DType dtype, std::uint64_t seed);
TensorSet make_gla_state(const Case& one, DType dtype, std::uint64_t seed);
TensorSet make_gla_state_backward(const Case& one, DType dtype, std::uint64_t seed);
TensorSet make_gla_step(const Case& one, DType dtype, std::uint64_t seed);

std::unique_ptr<Expectation> expect_gla(const TensorSet& set, bool sampled);
std::unique_ptr<Expectation> expect_gla_backward(const TensorSet& set, bool sampled);
std::unique_ptr<Expectation> expect_gla_state(const TensorSet& set, bool sampled);
std::unique_ptr<Expectation> expect_gla_state_backward(const TensorSet& set, bool sampled);
std::unique_ptr<Expectation> expect_gla_step(const TensorSet& set, bool sampled);

/// Tokens [begin,end) of a sequence: cu_seqlens clamped into [0,T].
struct TokenRange {
  std::int64_t begin = 0;
  std::int64_t end = 0;
};
TokenRange tokens_of(const GlaRecurrence& recurrence, std::int64_t n);

/// Chooses the sequences and heads to compare, as n * H + h: all or, with `sampled`, the first, the
/// last and some between, about a second of work on two cores.
std::vector<std::int64_t> heads_to_check(const GlaRecurrence& recurrence, bool sampled);

}  // namespace tandem::tools
