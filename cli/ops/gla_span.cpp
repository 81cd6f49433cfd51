#include "cli/ops/gla_span.h"

#include <cmath>
#include <limits>
#include <utility>
#include <vector>

#include "cli/calls/judge.h"

namespace tandem::tools {
namespace {

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
        squares.add(load(DType::kFloat32, data, head * size + j), state[j]);
      }
      const NamedTensor& total = set.get("total_log_decay");
      totals.push_back(
          compare_total(load(DType::kFloat32, after[total.buffer].data() + total.offset, head),
                        spans_.results[i].total_log_decay));
    }
    return {judge(state_, states, limit_), judge("total_log_decay", totals, 1e-5)};
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

std::unique_ptr<Expectation> expect_spans(const char* state, double limit, Spans spans) {
  return std::make_unique<SpanExpectation>(state, limit, std::move(spans));
}

double span_limit(const GlaRecurrence& recurrence) {
  return recurrence.log_decay.data ? error_limit(recurrence.dtype) : 1e-5;
}

}  // namespace tandem::tools
