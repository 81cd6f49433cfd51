// gla for the tools, split over gla.cpp (file, call, cost), gla_make.cpp and gla_expect.cpp.
#pragma once

#include <cstdint>
#include <memory>

#include "operation.h"
#include "ops/gla.h"

namespace tandem::tools {

TensorSet make_gla(const Case& one, DType dtype, std::uint64_t seed);
std::unique_ptr<Expectation> expect_gla(const TensorSet& set, bool sampled);

/// The checked problem over the set's own buffers, to be read only.
GlaForwardProblem host_problem(const TensorSet& set);

/// Tokens [begin,end) of a sequence: cu_seqlens clamped into [0,T].
struct TokenRange {
  std::int64_t begin = 0;
  std::int64_t end = 0;
};
TokenRange tokens_of(const GlaForwardProblem& problem, std::int64_t n);

}  // namespace tandem::tools
