// What gla_state_forward and gla_state_backward return against their fp64 definitions.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "cli/ops/gla.h"
#include "reference/gla_state.h"

namespace tandem::tools {

/// The definition at sequences and heads.
struct Spans {
  std::vector<std::int64_t> heads;  // n * H + h
  std::vector<reference::EndState> results;
};

/// Calls define(problem, n, h) for all sequences and heads or, with `sampled`, a few of them.
template <class Problem, class Define>
Spans define_spans(const Problem& problem, bool sampled, const Define& define) {
  Spans spans{heads_to_check(problem, sampled), {}};
  spans.results.resize(spans.heads.size());
#pragma omp parallel for schedule(dynamic)
  for (std::size_t i = 0; i < spans.heads.size(); ++i) {
    spans.results[i] = define(problem, spans.heads[i] / problem.H, spans.heads[i] % problem.H);
  }
  return spans;
}

/// Compares the output `state` and "total_log_decay" with the expected ones.
std::unique_ptr<Expectation> expect_spans(const char* state, double limit, Spans spans);

/// Without decay the products are exact in fp32, and so nearly is their sum.
double span_limit(const GlaRecurrence& recurrence);

}  // namespace tandem::tools
