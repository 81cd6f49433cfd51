// gla's forward and backward in turn, as in training, for the tools: the direction
// "forward_backward". The two calls share a stream and a workspace.
#include <algorithm>
#include <iterator>

#include "gla.h"

namespace tandem::tools {
namespace {

/// The backward's tensors and the forward's outputs, each laid out as its gradient.
TensorSet make(const Case& one, DType dtype, std::uint64_t seed) {
  TensorSet set = make_gla_backward(one, dtype, seed);
  const auto add = [&](const char* output, const char* gradient) {
    if (!set.find(gradient)) return;
    const NamedTensor like = set.get(gradient);
    const std::int64_t guard = kGuardBytes;
    add_tensor(set, output, like.dtype, like.shape, like.strides, true,
               (like.offset - guard) / size_of(like.dtype));
  };
  add("o", "d_o");
  add("final_state", "d_final_state");
  return set;
}

void call(const TensorSet& set, const std::vector<void*>& bases, Device device,
          const Context& context) {
  kGlaForward.call(set, bases, device, context);
  kGlaBackward.call(set, bases, device, context);
}

std::size_t workspace_bytes(const TensorSet& set, const std::vector<void*>& bases, Device device) {
  return std::max(kGlaForward.workspace_bytes(set, bases, device),
                  kGlaBackward.workspace_bytes(set, bases, device));
}

class BothExpectations : public Expectation {
 public:
  BothExpectations(const TensorSet& set, bool sampled)
      : forward_(expect_gla(set, sampled)), backward_(expect_gla_backward(set, sampled)) {}

  std::vector<OutputError> compare(const TensorSet& set, const Buffers& after) const override {
    std::vector<OutputError> errors = forward_->compare(set, after);
    std::ranges::move(backward_->compare(set, after), std::back_inserter(errors));
    return errors;
  }

 private:
  std::unique_ptr<Expectation> forward_, backward_;
};

std::unique_ptr<Expectation> expect(const TensorSet& set, bool sampled) {
  return std::make_unique<BothExpectations>(set, sampled);
}

/// What both read counts twice: between the two calls a training step has other layers.
Cost cost(const TensorSet& set) {
  const Cost forward = kGlaForward.cost(set), backward = kGlaBackward.cost(set);
  return {forward.bytes + backward.bytes, forward.flops + backward.flops};
}

std::string shape(const TensorSet& set) {
  return gla_shape(set.get("q").shape, set.get("v").shape);
}

}  // namespace

const Operation kGlaForwardBackward = {
    .name = "gla",
    .direction = "forward_backward",
    .function = nullptr,
    .inputs = {"q", "k", "v", "d_o"},
    .optional_inputs = {"log_decay", "initial_state", "cu_seqlens", "d_final_state"},
    .outputs = {"o", "final_state", "dq", "dk", "dv", "d_log_decay", "d_initial_state"},
    .make = make,
    .from_file = nullptr,
    .call = call,
    .workspace_bytes = workspace_bytes,
    .expect = expect,
    .cost = cost,
    .shape = shape};

}  // namespace tandem::tools
