// The outputs of gated_scan_decay, gated_scan_carry and its backward against the fp64 definition.
#include <vector>

#include "cli/calls/arguments.h"
#include "cli/ops/scan.h"
#include "cli/ops/scan_judge.h"
#include "ops/gated_scan.h"
#include "reference/gated_scan_carry.h"

namespace tandem::tools {
namespace {

/// What the definition says of some channels of a problem: define(problem, b, d) of one.
template <class Problem, class Result>
class Channels {
 public:
  template <class Args>
  Channels(const Signature& signature, const TensorSet& set, bool sampled,
           Result (*define)(const Problem&, std::int64_t, int), const Args*)
      : problem(make_problem(host_arguments<Args>(signature, set))),
        indices(channels_to_check(problem, sampled)),
        defined(indices.size()) {
#pragma omp parallel for schedule(dynamic)
    for (std::size_t i = 0; i < indices.size(); ++i) {
      defined[i] = define(problem, indices[i].n, indices[i].d);
    }
  }

  const Problem problem;
  const std::vector<ChannelIndex> indices;
  std::vector<Result> defined;
};

class DecayExpectation : public Expectation {
 public:
  DecayExpectation(const TensorSet& set, bool sampled)
      : channels_(gated_scan_decay_signature(), set, sampled, reference::gated_scan_decay_one,
                  static_cast<GatedScanDecayArgs*>(nullptr)) {}

  std::vector<OutputError> compare(const TensorSet& set, const Buffers& after) const override {
    const ChannelJudge judge(channels_.problem, set, after, channels_.indices);
    const auto& defined = channels_.defined;
    return {judge.lines(
                "before", [&](std::size_t i) -> auto& { return defined[i].before; }, product_limit),
            judge.states(
                "total", [&](std::size_t i) { return defined[i].total; }, product_limit)};
  }

 private:
  Channels<GatedScanDecayProblem, reference::DecayProducts> channels_;
};

class CarryExpectation : public Expectation {
 public:
  CarryExpectation(const TensorSet& set, bool sampled)
      : channels_(gated_scan_carry_signature(), set, sampled, reference::gated_scan_carry_one,
                  static_cast<GatedScanCarryArgs*>(nullptr)) {}

  std::vector<OutputError> compare(const TensorSet& set, const Buffers& after) const override {
    const ChannelJudge judge(channels_.problem, set, after, channels_.indices);
    return {judge.tokens(
        "out", [&](std::size_t i) -> auto& { return channels_.defined[i]; })};
  }

 private:
  Channels<GatedScanCarryProblem, std::vector<double>> channels_;
};

class CarryBackwardExpectation : public Expectation {
 public:
  CarryBackwardExpectation(const TensorSet& set, bool sampled)
      : channels_(gated_scan_carry_backward_signature(), set, sampled,
                  reference::gated_scan_carry_backward_one,
                  static_cast<GatedScanCarryBackwardArgs*>(nullptr)) {}

  std::vector<OutputError> compare(const TensorSet& set, const Buffers& after) const override {
    const ChannelJudge judge(channels_.problem, set, after, channels_.indices);
    const auto& defined = channels_.defined;
    return {judge.lines(
                "sums", [&](std::size_t i) -> auto& { return defined[i].sums; }, product_limit),
            judge.states(
                "d_carry", [&](std::size_t i) { return defined[i].d_carry; }, product_limit)};
  }

 private:
  Channels<GatedScanCarryBackwardProblem, reference::CarryGradient> channels_;
};

}  // namespace

std::unique_ptr<Expectation> expect_gated_scan_decay(const TensorSet& set, bool sampled) {
  return std::make_unique<DecayExpectation>(set, sampled);
}

std::unique_ptr<Expectation> expect_gated_scan_carry(const TensorSet& set, bool sampled) {
  return std::make_unique<CarryExpectation>(set, sampled);
}

std::unique_ptr<Expectation> expect_gated_scan_carry_backward(const TensorSet& set, bool sampled) {
  return std::make_unique<CarryBackwardExpectation>(set, sampled);
}

}  // namespace tandem::tools
