// linear_scan's outputs and gradients against the fp64 definition. Gradients are those of the whole
// forward, so that what it keeps for them is judged, too.
#include <algorithm>
#include <cstdint>
#include <vector>

#include "cli/calls/arguments.h"
#include "cli/ops/scan.h"
#include "cli/ops/scan_judge.h"
#include "ops/linear_scan.h"
#include "reference/linear_scan.h"

namespace tandem::tools {
namespace {

class ForwardExpectation : public Expectation {
 public:
  ForwardExpectation(const TensorSet& set, bool sampled)
      : problem_(make_problem(
            host_arguments<LinearScanForwardArgs>(linear_scan_forward_signature(), set))),
        channels_(channels_to_check(problem_, sampled, 0.05 * problem_.d)) {
    defined_.resize(channels_.size());
#pragma omp parallel for schedule(dynamic)
    for (std::size_t i = 0; i < channels_.size(); ++i) {
      const auto [n, d] = channels_[i];
      defined_[i].x = reference::project_one(problem_, n, d);
      defined_[i].scan = reference::scan_forward_one(problem_, defined_[i].x, n, d);
    }
  }

  std::vector<OutputError> compare(const TensorSet& set, const Buffers& after) const override {
    const ChannelJudge judge(problem_, set, after, channels_);
    std::vector<OutputError> errors = {judge.tokens(
        "out", [&](std::size_t i) -> auto& { return defined_[i].scan.out; })};
    if (set.find("final_state")) {
      errors.push_back(judge.states("final_state",
                                    [&](std::size_t i) { return defined_[i].scan.states.back(); }));
    }
    if (set.find("x")) {
      errors.push_back(judge.tokens_inside(
          "x", [&](std::size_t i) -> auto& { return defined_[i].x; }));
    }
    const NamedTensor* states = set.find("states");
    if (states != nullptr && states->output) {
      errors.push_back(judge.kept_states(
          "states", [&](std::size_t i) -> auto& { return defined_[i].scan.states; }));
    }
    return errors;
  }

 private:
  struct Channel {
    std::vector<double> x;
    reference::ScanChannel scan;
  };

  LinearScanForwardProblem problem_;
  std::vector<ChannelIndex> channels_;
  std::vector<Channel> defined_;
};

/// Chooses all of `count` indices or, with `sampled`, at most `most`: the first, the last and some
/// between.
std::vector<std::int64_t> some_of(std::int64_t count, bool sampled, std::int64_t most) {
  const std::int64_t wanted = sampled ? std::min(count, most) : count;
  std::vector<std::int64_t> all;
  for (std::int64_t i = 0; i < wanted; ++i) {
    all.push_back(wanted == 1 ? 0 : i * (count - 1) / (wanted - 1));
  }
  return all;
}

/// Expected du at some tokens of a sequence.
struct InputGradients {
  std::int64_t n;
  std::vector<std::int64_t> tokens;
  std::vector<double> du;  // [tokens,d]
};

class BackwardExpectation : public Expectation {
 public:
  BackwardExpectation(const TensorSet& set, bool sampled)
      : problem_(make_problem(
            host_arguments<LinearScanBackwardArgs>(linear_scan_backward_signature(), set))),
        p_(problem_.forward) {
    for (const std::int64_t d : some_of(p_.D, sampled, 8)) {
      for (std::int64_t n = 0; n < p_.N; ++n) channels_.push_back({n, static_cast<int>(d)});
    }
    defined_.resize(channels_.size());
#pragma omp parallel for schedule(dynamic)
    for (std::size_t i = 0; i < channels_.size(); ++i) {
      defined_[i] = reference::linear_scan_backward_one(problem_, channels_[i].n, channels_[i].d);
    }
    for (const std::int64_t n : some_of(p_.N, sampled, 2)) {
      inputs_.push_back({n, some_of(reference::span_of(p_, n).length(), sampled, 32), {}});
    }
    for (InputGradients& one : inputs_) define_du(one);
    define_d_weight();
  }

  std::vector<OutputError> compare(const TensorSet& set, const Buffers& after) const override {
    const ChannelJudge judge(p_, set, after, channels_);
    std::vector<OutputError> errors = {compare_du(set.get("du"), after),
                                       compare_d_weight(set.get("d_weight"), after)};
    const auto tokens = [&](const char* name,
                            std::vector<double> reference::ScanChannelGradients::*gradient) {
      if (!set.find(name)) return;
      errors.push_back(judge.tokens(
          name, [&](std::size_t i) -> auto& { return defined_[i].*gradient; }, rounded_x_limit));
    };
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
  void define_du(InputGradients& one) const {
    std::vector<std::vector<double>> dx(p_.D), weight(p_.D);
#pragma omp parallel for schedule(dynamic)
    for (int d = 0; d < p_.D; ++d) {
      dx[d] = reference::linear_scan_dx_one(problem_, one.n, d);
      weight[d] = reference::read_weight(p_, d);
    }
    one.du.resize(one.tokens.size() * p_.d);
#pragma omp parallel for schedule(dynamic)
    for (std::size_t i = 0; i < one.tokens.size(); ++i) {
      for (int d = 0; d < p_.D; ++d) {
        const double gradient = dx[d][one.tokens[i]];
        for (int j = 0; j < p_.d; ++j) one.du[i * p_.d + j] += gradient * weight[d][j];
      }
    }
  }

  /// Adds up the d_weight of the checked channels, which follow each other by sequences.
  void define_d_weight() {
    if (p_.N == 0) return;
    const auto rows = static_cast<std::int64_t>(channels_.size()) / p_.N;
    d_weight_.assign(rows, std::vector<double>(p_.d));
#pragma omp parallel for schedule(dynamic)
    for (std::int64_t row = 0; row < rows; ++row) {
      for (std::int64_t n = 0; n < p_.N; ++n) {
        const reference::Span span = reference::span_of(p_, n);
        const std::vector<double>& dx = defined_[row * p_.N + n].dx;
        for (std::int64_t t = 0; t < span.length(); ++t) {
          const std::vector<double> u = reference::read_u(p_, span, t);
          for (int j = 0; j < p_.d; ++j) d_weight_[row][j] += dx[t] * u[j];
        }
      }
    }
  }

  OutputError compare_du(const NamedTensor& x, const Buffers& after) const {
    const std::byte* data = after[x.buffer].data() + x.offset;
    std::vector<Squares> all;
    std::vector<char> inside(p_.T, !p_.cu_seqlens);
    for (std::int64_t n = 0; p_.cu_seqlens && n < p_.N; ++n) {
      const reference::Span span = reference::span_of(p_, n);
      std::fill(inside.begin() + span.begin, inside.begin() + span.end, 1);
    }
    for (const InputGradients& one : inputs_) {
      const reference::Span span = reference::span_of(p_, one.n);
      Squares& squares = all.emplace_back();
      for (std::size_t i = 0; i < one.tokens.size(); ++i) {
        const std::int64_t at = span.b * x.strides[0] + (span.begin + one.tokens[i]) * x.strides[1];
        for (int j = 0; j < p_.d; ++j) {
          squares.add(load(x.dtype, data, at + j), one.du[i * p_.d + j]);
        }
      }
    }
    Squares& outside = all.emplace_back();
    for (std::int64_t t = 0; t < p_.T; ++t) {
      for (int j = 0; j < p_.d && !inside[t]; ++j) {
        outside.add(load(x.dtype, data, t * x.strides[1] + j), 0);
      }
    }
    return judge("du", all, rounded_x_limit(x.dtype, p_.dtype));
  }

  OutputError compare_d_weight(const NamedTensor& x, const Buffers& after) const {
    const std::byte* data = after[x.buffer].data() + x.offset;
    std::vector<Squares> all;
    for (std::size_t row = 0; row < d_weight_.size(); ++row) {
      Squares& squares = all.emplace_back();
      for (int j = 0; j < p_.d; ++j) {
        squares.add(load(x.dtype, data, channels_[row * p_.N].d * x.strides[0] + j),
                    d_weight_[row][j]);
      }
    }
    return judge("d_weight", all, rounded_x_limit(x.dtype, p_.dtype));
  }

  LinearScanBackwardProblem problem_;
  const LinearScanForwardProblem& p_;
  std::vector<ChannelIndex> channels_;
  std::vector<reference::ScanChannelGradients> defined_;
  std::vector<std::vector<double>> d_weight_;  // [channels][d]
  std::vector<InputGradients> inputs_;
};

}  // namespace

std::unique_ptr<Expectation> expect_linear_scan(const TensorSet& set, bool sampled) {
  return std::make_unique<ForwardExpectation>(set, sampled);
}

std::unique_ptr<Expectation> expect_linear_scan_backward(const TensorSet& set, bool sampled) {
  return std::make_unique<BackwardExpectation>(set, sampled);
}

}  // namespace tandem::tools
