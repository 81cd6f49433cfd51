// gla_state_backward for the tools: the direction "state_backward" of gla.
#include <optional>
#include <vector>

#include "cli/calls/judge.h"
#include "cli/ops/gla.h"
#include "cli/ops/gla_span.h"
#include "reference/gla_state_backward.h"

namespace tandem::tools {
namespace {

/// Makes the tensors of "state" under other names.
TensorSet make(const Case& one, DType dtype, std::uint64_t seed) {
  TensorSet set = make_gla_state(one, dtype, seed);
  for (NamedTensor& tensor : set.tensors) {
    if (tensor.name == "k") tensor.name = "q";
    if (tensor.name == "v") tensor.name = "d_o";
    if (tensor.name == "state") tensor.name = "d_state";
  }
  if (one.scale) set.scalars["scale"] = *one.scale;
  return set;
}

GlaStateBackwardArgs to_args(const TensorSet& set, const std::vector<void*>& bases, Device device) {
  const Views views(set, bases, device);
  GlaStateBackwardArgs args;
  args.q = views.required("q");
  args.d_o = views.required("d_o");
  args.log_decay = views.optional("log_decay");
  args.cu_seqlens = views.optional("cu_seqlens");
  args.d_state = views.required("d_state");
  args.total_log_decay = views.required("total_log_decay");
  if (set.scalars.count("scale")) args.scale = set.scalars.at("scale");
  return args;
}

void call(const TensorSet& set, const std::vector<void*>& bases, Device device,
          const Context& context) {
  gla_state_backward(to_args(set, bases, device), context);
}

std::size_t workspace_bytes(const TensorSet& set, const std::vector<void*>& bases, Device device) {
  return gla_state_backward_workspace_bytes(to_args(set, bases, device), device_properties(device));
}

/// Makes the checked problem over the set's own buffers, to be read only.
GlaStateBackwardProblem problem_of(const TensorSet& set) {
  return make_problem(to_args(set, host_bases(set), Device::cpu()));
}

std::unique_ptr<Expectation> expect(const TensorSet& set, bool sampled) {
  const GlaStateBackwardProblem problem = problem_of(set);
  // Even without decay the gradient is not exact, as the state is: the scale is in a rounded
  // operand.
  return expect_spans("d_state", error_limit(problem.dtype),
                      define_spans(problem, sampled, reference::gla_state_backward_one));
}

/// A token adds q d_o^T.
Cost cost(const TensorSet& set) {
  const GlaStateBackwardProblem problem = problem_of(set);
  return {bytes_of(set, kGlaStateBackward),
          token_count(problem) * problem.H * 2 * problem.K * problem.V};
}

std::string shape(const TensorSet& set) {
  return gla_shape(set.get("q").shape, set.get("d_o").shape);
}

}  // namespace

const Operation kGlaStateBackward = {.name = "gla",
                                     .direction = "state_backward",
                                     .function = "gla_state_backward",
                                     .inputs = {"q", "d_o"},
                                     .optional_inputs = {"log_decay", "cu_seqlens"},
                                     .outputs = {"d_state", "total_log_decay"},
                                     .make = make,
                                     .from_file = nullptr,
                                     .call = call,
                                     .workspace_bytes = workspace_bytes,
                                     .expect = expect,
                                     .cost = cost,
                                     .shape = shape};

}  // namespace tandem::tools
