// gated_scan's outputs and gradients against the fp64 definition.
#include <cstdint>
#include <vector>

#include "cli/calls/arguments.h"
#include "cli/ops/scan.h"
#include "cli/ops/scan_judge.h"
#include "ops/gated_scan.h"

namespace tandem::tools {
namespace {

class ForwardExpectation : public Expectation {
 public:
  ForwardExpectation(const TensorSet& set, bool sampled)
      : problem_(make_problem(
            host_arguments<GatedScanForwardArgs>(gated_scan_forward_signature(), set))),
        channels_(channels_to_check(problem_, sampled)) {
    defined_.resize(channels_.size());
#pragma omp parallel for schedule(dynamic)
    for (std::size_t i = 0; i < channels_.size(); ++i) {
      defined_[i] = reference::gated_scan_forward_one(problem_, channels_[i].n, channels_[i].d);
    }
  }

  std::vector<OutputError> compare(const TensorSet& set, const Buffers& after) const override {
    const ChannelJudge judge(problem_, set, after, channels_);
    std::vector<OutputError> errors = {judge.tokens(
        "out", [&](std::size_t i) -> auto& { return defined_[i].out; })};
    if (set.find("final_state")) {
      errors.push_back(
          judge.states("final_state", [&](std::size_t i) { return defined_[i].states.back(); }));
    }
    const NamedTensor* states = set.find("states");
    if (states != nullptr && states->output) {
      errors.push_back(judge.kept_states(
          "states", [&](std::size_t i) -> auto& { return defined_[i].states; }));
    }
    return errors;
  }

 private:
  GatedScanForwardProblem problem_;
  std::vector<ChannelIndex> channels_;
  std::vector<reference::ScanChannel> defined_;
};

class BackwardExpectation : public Expectation {
 public:
  BackwardExpectation(const TensorSet& set, bool sampled)
      : problem_(make_problem(
            host_arguments<GatedScanBackwardArgs>(gated_scan_backward_signature(), set))),
        channels_(channels_to_check(problem_.forward, sampled)) {
    defined_.resize(channels_.size());
#pragma omp parallel for schedule(dynamic)
    for (std::size_t i = 0; i < channels_.size(); ++i) {
      defined_[i] = reference::gated_scan_backward_one(problem_, channels_[i].n, channels_[i].d);
    }
  }

  std::vector<OutputError> compare(const TensorSet& set, const Buffers& after) const override {
    const ChannelJudge judge(problem_.forward, set, after, channels_);
    std::vector<OutputError> errors;
    const auto tokens = [&](const char* name,
                            std::vector<double> reference::ScanChannelGradients::*gradient) {
      if (!set.find(name)) return;
      errors.push_back(judge.tokens(
          name, [&](std::size_t i) -> auto& { return defined_[i].*gradient; }));
    };
    tokens("dx", &reference::ScanChannelGradients::dx);
    tokens("d_decay", &reference::ScanChannelGradients::d_decay);
    tokens("d_log_decay", &reference::ScanChannelGradients::d_decay);
    tokens("d_gate", &reference::ScanChannelGradients::d_gate);
    if (set.find("d_initial_state")) {
      errors.push_back(judge.states("d_initial_state",
                                    [&](std::size_t i) { return defined_[i].d_initial_state; }));
    }
    return errors;
  }

 private:
  GatedScanBackwardProblem problem_;
  std::vector<ChannelIndex> channels_;
  std::vector<reference::ScanChannelGradients> defined_;
};

}  // namespace

std::unique_ptr<Expectation> expect_gated_scan(const TensorSet& set, bool sampled) {
  return std::make_unique<ForwardExpectation>(set, sampled);
}

std::unique_ptr<Expectation> expect_gated_scan_backward(const TensorSet& set, bool sampled) {
  return std::make_unique<BackwardExpectation>(set, sampled);
}

}  // namespace tandem::tools
