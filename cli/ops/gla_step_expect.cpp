// gla_step's output and state against the fp64 definition.
#include <vector>

#include "cli/calls/arguments.h"
#include "cli/calls/judge.h"
#include "cli/ops/gla.h"
#include "reference/gla_step.h"

namespace tandem::tools {
namespace {

/// What the definition gives for one batch and head.
struct Token {
  std::vector<double> o;      // [V]
  std::vector<double> state;  // [K,V]
};

class StepExpectation : public Expectation {
 public:
  StepExpectation(const TensorSet& set, bool sampled)
      : problem_(make_problem(host_arguments<GlaStepArgs>(gla_step_signature(), set))),
        heads_(heads_to_check(problem_, sampled)) {
    tokens_.resize(heads_.size());
#pragma omp parallel for schedule(static)
    for (std::size_t i = 0; i < heads_.size(); ++i) {
      Token& token = tokens_[i];
      token.o.resize(problem_.V);
      token.state.resize(static_cast<std::size_t>(problem_.K) * problem_.V);
      reference::gla_step_one(problem_, heads_[i] / problem_.H,
                              static_cast<int>(heads_[i] % problem_.H), token.o.data(),
                              token.state.data());
    }
  }

  std::vector<OutputError> compare(const TensorSet& set, const Buffers& after) const override {
    std::vector<Squares> o, state;
    for (std::size_t i = 0; i < heads_.size(); ++i) {
      o.push_back(squares(set.get("o"), after, heads_[i], 1, tokens_[i].o));
      state.push_back(squares(set.get("state"), after, heads_[i], problem_.K, tokens_[i].state));
    }
    return {judge("o", o, error_limit(problem_.dtype)),
            judge("state", state, error_limit(problem_.state_dtype))};
  }

 private:
  /// Compares an output of `rows` rows of V elements: o [B,H,V] has one, the state [B,H,K,V] has K.
  Squares squares(const NamedTensor& tensor, const Buffers& after, std::int64_t head, int rows,
                  const std::vector<double>& expected) const {
    const std::byte* data = after[tensor.buffer].data() + tensor.offset;
    const std::int64_t first =
        head / problem_.H * tensor.strides[0] + head % problem_.H * tensor.strides[1];
    Squares squares;
    for (int i = 0; i < rows; ++i) {
      for (int j = 0; j < problem_.V; ++j) {
        squares.add(load(tensor.dtype, data, first + i * tensor.strides[2] + j),
                    expected[static_cast<std::size_t>(i) * problem_.V + j]);
      }
    }
    return squares;
  }

  GlaStepProblem problem_;
  std::vector<std::int64_t> heads_;  // b * H + h
  std::vector<Token> tokens_;
};

}  // namespace

std::unique_ptr<Expectation> expect_gla_step(const TensorSet& set, bool sampled) {
  return std::make_unique<StepExpectation>(set, sampled);
}

}  // namespace tandem::tools
