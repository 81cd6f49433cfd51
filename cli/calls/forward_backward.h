// An op's forward and backward in turn, as in training: what its direction "forward_backward" does.
// The two calls share a stream and a workspace.
#pragma once

#include <algorithm>
#include <iterator>
#include <memory>
#include <string>
#include <vector>

#include "cli/calls/operation.h"

namespace tandem::tools {

class BothExpectations : public Expectation {
 public:
  BothExpectations(std::unique_ptr<Expectation> forward, std::unique_ptr<Expectation> backward)
      : forward_(std::move(forward)), backward_(std::move(backward)) {}

  std::vector<OutputError> compare(const TensorSet& set, const Buffers& after) const override {
    std::vector<OutputError> errors = forward_->compare(set, after);
    std::ranges::move(backward_->compare(set, after), std::back_inserter(errors));
    return errors;
  }

 private:
  std::unique_ptr<Expectation> forward_, backward_;
};

/// Sets the entry's functions; its lists of tensors are its own.
template <const Operation& kForward, const Operation& kBackward>
struct ForwardBackward {
  /// Makes the backward's tensors and the forward's outputs, each laid out as its gradient.
  static TensorSet make(const Case& one, DType dtype, std::uint64_t seed) {
    TensorSet set = kBackward.make(one, dtype, seed);
    for (const std::string& output : kForward.outputs) {
      if (!set.find("d_" + output)) continue;
      const NamedTensor like = set.get("d_" + output);
      const std::int64_t guard = kGuardBytes;
      add_tensor(set, output, like.dtype, like.shape, like.strides, true,
                 (like.offset - guard) / size_of(like.dtype));
    }
    return set;
  }

  static void call(const TensorSet& set, const std::vector<void*>& bases, Device device,
                   const Context& context) {
    kForward.call(set, bases, device, context);
    kBackward.call(set, bases, device, context);
  }

  static std::size_t workspace_bytes(const TensorSet& set, const std::vector<void*>& bases,
                                     Device device) {
    return std::max(kForward.workspace_bytes(set, bases, device),
                    kBackward.workspace_bytes(set, bases, device));
  }

  static std::unique_ptr<Expectation> expect(const TensorSet& set, bool sampled) {
    return std::make_unique<BothExpectations>(kForward.expect(set, sampled),
                                              kBackward.expect(set, sampled));
  }

  /// Adds the costs of both calls. What both read counts twice: between the two calls a training
  /// step has other layers.
  static Cost cost(const TensorSet& set) {
    const Cost forward = kForward.cost(set), backward = kBackward.cost(set);
    return {forward.bytes + backward.bytes, forward.flops + backward.flops};
  }
};

}  // namespace tandem::tools
