// What gla_state_forward and gla_state_backward return against their fp64 definitions.
#include <cmath>
#include <cstdint>
#include <limits>
#include <utility>
#include <vector>

#include "cli/calls/arguments.h"
#include "cli/calls/judge.h"
#include "cli/ops/gla.h"
#include "reference/gla_state.h"
#include "reference/gla_state_backward.h"

namespace tandem::tools {
namespace {

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

class SpanExpectation : public Expectation {
 public:
  SpanExpectation(const char* state, double limit, Spans spans)
      : state_(state), limit_(limit), spans_(std::move(spans)) {}

  std::vector<OutputError> compare(const TensorSet& set, const Buffers& after) const override {
    std::vector<Squares> states, totals;
    for (std::size_t i = 0; i < spans_.heads.size(); ++i) {
      const std::int64_t head = spans_.heads[i];
      const std::vector<double>& state = spans_.results[i].state;
      const std::int64_t size = static_cast<std::int64_t>(state.size());
      const NamedTensor& to = set.get(state_);
      const std::byte* data = after[to.buffer].data() + to.offset;
      Squares& squares = states.emplace_back();
      for (std::int64_t j = 0; j < size; ++j) {
        squares.add(load(to.dtype, data, head * size + j), state[j]);
      }
      const NamedTensor& total = set.get("total_log_decay");
      totals.push_back(
          compare_total(load(total.dtype, after[total.buffer].data() + total.offset, head),
                        spans_.results[i].total_log_decay));
    }
    return {judge(state_, states, limit_),
            judge("total_log_decay", totals, std::min(limit_, 1e-5))};
  }

 private:
  /// -inf is right or wrong; there is nothing between.
  static Squares compare_total(double total, double expected) {
    Squares squares;
    if (std::isfinite(expected)) {
      squares.add(total, expected);
    } else {
      squares.add(total == expected ? 0 : std::numeric_limits<double>::quiet_NaN(), 0);
    }
    return squares;
  }

  const char* state_;
  double limit_;
  Spans spans_;
};

}  // namespace

std::unique_ptr<Expectation> expect_gla_state(const TensorSet& set, bool sampled) {
  const auto problem =
      make_problem(host_arguments<GlaStateForwardArgs>(gla_state_forward_signature(), set));
  // Without decay the products are exact in fp32, and so nearly is their sum.
  const double by_dtype = error_limit(problem.dtype);
  const double limit = problem.log_decay.data ? by_dtype : std::min(by_dtype, 1e-5);
  return std::make_unique<SpanExpectation>(
      "state", limit, define_spans(problem, sampled, reference::gla_state_forward_one));
}

std::unique_ptr<Expectation> expect_gla_state_backward(const TensorSet& set, bool sampled) {
  const auto problem =
      make_problem(host_arguments<GlaStateBackwardArgs>(gla_state_backward_signature(), set));
  // Even without decay the gradient is not exact, as the state is: the scale is in a rounded
  // operand.
  return std::make_unique<SpanExpectation>(
      "d_state", error_limit(problem.dtype),
      define_spans(problem, sampled, reference::gla_state_backward_one));
}

}  // namespace tandem::tools
