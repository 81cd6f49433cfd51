// gla_state_forward for the tools: the direction "state" of gla.
#include <cmath>
#include <limits>
#include <optional>
#include <vector>

#include "gla.h"
#include "judge.h"
#include "reference/gla_state.h"

namespace tandem::tools {
namespace {

GlaStateForwardArgs bind(const TensorSet& set, const std::vector<void*>& bases, Device device) {
  const Views views(set, bases, device);
  return {.k = views.required("k"),
          .v = views.required("v"),
          .log_decay = views.optional("log_decay"),
          .cu_seqlens = views.optional("cu_seqlens"),
          .state = views.required("state"),
          .total_log_decay = views.required("total_log_decay")};
}

void call(const TensorSet& set, const std::vector<void*>& bases, Device device,
          const Context& context) {
  gla_state_forward(bind(set, bases, device), context);
}

std::size_t workspace_bytes(const TensorSet& set, const std::vector<void*>& bases, Device device) {
  return gla_state_forward_workspace_bytes(bind(set, bases, device), device_properties(device));
}

/// The checked problem over the set's own buffers, to be read only.
GlaStateForwardProblem problem_of(const TensorSet& set) {
  return make_problem(bind(set, host_bases(set), Device::cpu()));
}

class StateExpectation : public Expectation {
 public:
  StateExpectation(const TensorSet& set, bool sampled)
      : problem_(problem_of(set)), heads_(heads_to_check(problem_, sampled)) {
    spans_.resize(heads_.size());
#pragma omp parallel for schedule(dynamic)
    for (std::size_t i = 0; i < heads_.size(); ++i) {
      const std::int64_t n = heads_[i] / problem_.H;
      spans_[i] = reference::gla_state_forward_one(problem_, n, heads_[i] % problem_.H);
    }
  }

  std::vector<OutputError> compare(const TensorSet& set, const Buffers& after) const override {
    const double limit = problem_.log_decay.data ? error_limit(problem_.dtype) : 1e-5;
    std::vector<Squares> states, totals;
    for (std::size_t i = 0; i < heads_.size(); ++i) {
      const std::vector<double>& state = spans_[i].state;
      const std::int64_t size = static_cast<std::int64_t>(state.size());
      const NamedTensor& to = set.get("state");
      const std::byte* data = after[to.buffer].data() + to.offset;
      Squares& squares = states.emplace_back();
      for (std::int64_t j = 0; j < size; ++j) {
        squares.add(load(DType::kFloat32, data, heads_[i] * size + j), state[j]);
      }
      const NamedTensor& total = set.get("total_log_decay");
      totals.push_back(
          compare_total(load(DType::kFloat32, after[total.buffer].data() + total.offset, heads_[i]),
                        spans_[i].total_log_decay));
    }
    return {judge("state", states, limit), judge("total_log_decay", totals, 1e-5)};
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

  GlaStateForwardProblem problem_;
  std::vector<std::int64_t> heads_;  // n * H + h
  std::vector<reference::EndState> spans_;
};

std::unique_ptr<Expectation> expect(const TensorSet& set, bool sampled) {
  return std::make_unique<StateExpectation>(set, sampled);
}

/// A token adds k v^T.
Cost cost(const TensorSet& set) {
  const GlaStateForwardProblem problem = problem_of(set);
  return {bytes_of(set, kGlaState), token_count(problem) * problem.H * 2 * problem.K * problem.V};
}

std::string shape(const TensorSet& set) {
  return gla_shape(set.get("k").shape, set.get("v").shape);
}

}  // namespace

const Operation kGlaState = {.name = "gla",
                             .direction = "state",
                             .function = "gla_state_forward",
                             .inputs = {"k", "v"},
                             .optional_inputs = {"log_decay", "cu_seqlens"},
                             .outputs = {"state", "total_log_decay"},
                             .make = make_gla_state,
                             .from_file = nullptr,
                             .call = call,
                             .workspace_bytes = workspace_bytes,
                             .expect = expect,
                             .cost = cost,
                             .shape = shape};

}  // namespace tandem::tools
