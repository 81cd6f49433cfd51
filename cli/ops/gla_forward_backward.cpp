// gla's forward and backward in turn for the tools: the direction "forward_backward".
#include "cli/calls/forward_backward.h"
#include "cli/ops/gla.h"

namespace tandem::tools {
namespace {

using Both = ForwardBackward<kGlaForward, kGlaBackward>;

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
    .make = Both::make,
    .from_file = nullptr,
    .call = Both::call,
    .workspace_bytes = Both::workspace_bytes,
    .expect = Both::expect,
    .cost = Both::cost,
    .shape = shape};

}  // namespace tandem::tools
