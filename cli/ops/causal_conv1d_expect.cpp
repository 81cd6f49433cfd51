// causal_conv1d's outputs and gradients against the fp64 definition.
#include <algorithm>
#include <cstdint>
#include <vector>

#include "cli/calls/arguments.h"
#include "cli/calls/judge.h"
#include "cli/ops/causal_conv1d.h"
#include "ops/causal_conv1d.h"
#include "reference/causal_conv1d.h"

namespace tandem::tools {
namespace {

/// Limit on the relative error of an output of `dtype`: the rounding of one value, and that of sums
/// in fp32.
double limit_of(DType dtype) {
  switch (dtype) {
    case DType::kBFloat16: return 0x1p-8;
    case DType::kFloat16: return 0x1p-11;
    case DType::kFloat64: return 1e-13;
    default: return 2e-6;
  }
}

/// Chooses all channels or, with `sampled`, the first, the last and some between: about a second of
/// work on two cores.
std::vector<int> channels_to_check(const CausalConv1d& p, bool sampled) {
  constexpr std::int64_t kFewest = 8, kTokens = 30'000'000;
  const std::int64_t affordable = kTokens / std::max<std::int64_t>(p.B * p.T, 1);
  const std::int64_t wanted =
      sampled ? std::min<std::int64_t>(p.D, std::max(kFewest, affordable)) : p.D;
  std::vector<int> channels;
  for (std::int64_t i = 0; i < wanted; ++i) {
    channels.push_back(static_cast<int>(
        wanted == p.D ? i : i * (p.D - 1) / std::max<std::int64_t>(wanted - 1, 1)));
  }
  return channels;
}

/// What the definition says of some channels of all sequences: Result is of one.
template <class Result>
class Channels {
 public:
  template <class Define>
  Channels(const CausalConv1d& p, bool sampled, const Define& define)
      : channels_(channels_to_check(p, sampled)), sequences_(p.N) {
    results_.resize(sequences_ * channels_.size());
#pragma omp parallel for schedule(dynamic)
    for (std::size_t i = 0; i < results_.size(); ++i) {
      results_[i] =
          define(static_cast<std::int64_t>(i / channels_.size()), channels_[i % channels_.size()]);
    }
  }

  /// Calls use(n, d, result) for each sequence and channel.
  template <class Use>
  void for_each(const Use& use) const {
    for (std::size_t i = 0; i < results_.size(); ++i) {
      use(static_cast<std::int64_t>(i / channels_.size()), channels_[i % channels_.size()],
          results_[i]);
    }
  }
  const std::vector<int>& channels() const { return channels_; }

 private:
  std::vector<int> channels_;
  std::int64_t sequences_;
  std::vector<Result> results_;
};

class TensorReader {
 public:
  TensorReader(const TensorSet& set, const Buffers& after, const char* name)
      : tensor_(set.get(name)), data_(after[tensor_.buffer].data() + tensor_.offset) {}

  /// The element at these places, one of each axis.
  double at(std::initializer_list<std::int64_t> places) const {
    std::int64_t offset = 0;
    int axis = 0;
    for (const std::int64_t place : places) offset += place * tensor_.strides[axis++];
    return load(tensor_.dtype, data_, offset);
  }
  OutputError judged(const std::vector<Squares>& heads) const {
    return judge(tensor_.name.c_str(), heads, limit_of(tensor_.dtype));
  }

 private:
  const NamedTensor& tensor_;
  const std::byte* data_;
};

/// Compares a tensor [B,T,D], values(result) of each channel; tokens of no sequence must be 0.
template <class Result, class Values>
OutputError compare_tokens(const TensorReader& tensor, const CausalConv1dForwardProblem& p,
                           const Channels<Result>& defined, const Values& values) {
  std::vector<Squares> heads;
  std::vector<char> inside(p.T, !p.cu_seqlens);
  defined.for_each([&](std::int64_t n, int d, const Result& result) {
    const reference::ConvSpan span = reference::conv_span(p, n);
    Squares& squares = heads.emplace_back();
    for (std::int64_t t = span.begin; t < span.end; ++t) {
      squares.add(tensor.at({span.b, t, d}), values(result)[t - span.begin]);
      inside[t] = 1;
    }
  });
  Squares& outside = heads.emplace_back();
  for (std::int64_t t = 0; t < p.T; ++t) {
    for (int d = 0; d < p.D && !inside[t]; ++d) outside.add(tensor.at({0, t, d}), 0);
  }
  return tensor.judged(heads);
}

/// Compares a state [N,D,W-1].
template <class Result, class Values>
OutputError compare_states(const TensorReader& tensor, const Channels<Result>& defined,
                           const Values& values) {
  std::vector<Squares> heads;
  defined.for_each([&](std::int64_t n, int d, const Result& result) {
    Squares& squares = heads.emplace_back();
    const std::vector<double>& expected = values(result);
    for (std::size_t j = 0; j < expected.size(); ++j) {
      squares.add(tensor.at({n, d, static_cast<std::int64_t>(j)}), expected[j]);
    }
  });
  return tensor.judged(heads);
}

using reference::ConvChannel;
using reference::ConvChannelGradients;

class ForwardExpectation : public Expectation {
 public:
  ForwardExpectation(const TensorSet& set, bool sampled)
      : problem_(make_problem(
            host_arguments<CausalConv1dForwardArgs>(causal_conv1d_forward_signature(), set))),
        defined_(problem_, sampled, [&](std::int64_t n, int d) {
          return reference::causal_conv1d_forward_one(problem_, n, d);
        }) {}

  std::vector<OutputError> compare(const TensorSet& set, const Buffers& after) const override {
    std::vector<OutputError> errors = {compare_tokens(
        {set, after, "out"}, problem_, defined_, [](const auto& c) -> auto& { return c.out; })};
    if (set.find("final_state")) {
      errors.push_back(compare_states(
          {set, after, "final_state"}, defined_,
          [](const auto& c) -> auto& { return c.final_state; }));
    }
    return errors;
  }

 private:
  CausalConv1dForwardProblem problem_;
  Channels<ConvChannel> defined_;
};

class BackwardExpectation : public Expectation {
 public:
  BackwardExpectation(const TensorSet& set, bool sampled)
      : problem_(make_problem(
            host_arguments<CausalConv1dBackwardArgs>(causal_conv1d_backward_signature(), set))),
        defined_(problem_.forward, sampled, [&](std::int64_t n, int d) {
          return reference::causal_conv1d_backward_one(problem_, n, d);
        }) {}

  std::vector<OutputError> compare(const TensorSet& set, const Buffers& after) const override {
    std::vector<OutputError> errors = {
        compare_tokens(
            {set, after, "dx"}, problem_.forward, defined_,
            [](const auto& g) -> auto& { return g.dx; }),
        compare_taps({set, after, "d_weight"}, problem_.forward.W,
                     [](const auto& g, int w) { return g.d_weight[w]; })};
    if (set.find("d_bias")) {
      errors.push_back(
          compare_taps({set, after, "d_bias"}, 1, [](const auto& g, int) { return g.d_bias; }));
    }
    if (set.find("d_initial_state")) {
      errors.push_back(compare_states(
          {set, after, "d_initial_state"}, defined_,
          [](const auto& g) -> auto& { return g.d_initial_state; }));
    }
    return errors;
  }

 private:
  /// Compares gradients of taps: sums over the sequences of value(result, w).
  template <class Value>
  OutputError compare_taps(const TensorReader& tensor, int count, const Value& value) const {
    std::vector<std::vector<double>> sums(problem_.forward.D, std::vector<double>(count));
    defined_.for_each([&](std::int64_t, int d, const ConvChannelGradients& gradients) {
      for (int w = 0; w < count; ++w) sums[d][w] += value(gradients, w);
    });
    std::vector<Squares> heads;
    for (const int d : defined_.channels()) {
      Squares& squares = heads.emplace_back();
      for (int w = 0; w < count; ++w) squares.add(tensor.at({d, w}), sums[d][w]);
    }
    return tensor.judged(heads);
  }

  CausalConv1dBackwardProblem problem_;
  Channels<ConvChannelGradients> defined_;
};

class StepExpectation : public Expectation {
 public:
  StepExpectation(const TensorSet& set, bool sampled)
      : problem_(make_problem(
            host_arguments<CausalConv1dStepArgs>(causal_conv1d_step_signature(), set))),
        defined_(problem_, sampled, [&](std::int64_t b, int d) {
          return reference::causal_conv1d_step_one(problem_, b, d);
        }) {}

  std::vector<OutputError> compare(const TensorSet& set, const Buffers& after) const override {
    const TensorReader out(set, after, "out");
    std::vector<Squares> heads;
    defined_.for_each([&](std::int64_t b, int d, const ConvChannel& c) {
      heads.emplace_back().add(out.at({b, d}), c.out[0]);
    });
    return {out.judged(heads), compare_states(
                                   {set, after, "state"}, defined_,
                                   [](const auto& c) -> auto& { return c.final_state; })};
  }

 private:
  CausalConv1dStepProblem problem_;
  Channels<ConvChannel> defined_;
};

}  // namespace

std::unique_ptr<Expectation> expect_causal_conv1d(const TensorSet& set, bool sampled) {
  return std::make_unique<ForwardExpectation>(set, sampled);
}

std::unique_ptr<Expectation> expect_causal_conv1d_backward(const TensorSet& set, bool sampled) {
  return std::make_unique<BackwardExpectation>(set, sampled);
}

std::unique_ptr<Expectation> expect_causal_conv1d_step(const TensorSet& set, bool sampled) {
  return std::make_unique<StepExpectation>(set, sampled);
}

}  // namespace tandem::tools
