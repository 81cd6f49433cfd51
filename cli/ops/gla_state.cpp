// gla_state_forward for the tools: the direction "state" of gla.
#include <optional>
#include <vector>

#include "cli/ops/gla.h"
#include "cli/ops/gla_span.h"
#include "reference/gla_state.h"

namespace tandem::tools {
namespace {

GlaStateForwardArgs to_args(const TensorSet& set, const std::vector<void*>& bases, Device device) {
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
  gla_state_forward(to_args(set, bases, device), context);
}

std::size_t workspace_bytes(const TensorSet& set, const std::vector<void*>& bases, Device device) {
  return gla_state_forward_workspace_bytes(to_args(set, bases, device), device_properties(device));
}

/// Makes the checked problem over the set's own buffers, to be read only.
GlaStateForwardProblem problem_of(const TensorSet& set) {
  return make_problem(to_args(set, host_bases(set), Device::cpu()));
}

std::unique_ptr<Expectation> expect(const TensorSet& set, bool sampled) {
  const GlaStateForwardProblem problem = problem_of(set);
  return expect_spans("state", span_limit(problem),
                      define_spans(problem, sampled, reference::gla_state_forward_one));
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
