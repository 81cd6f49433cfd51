// gated_scan's forward and backward in turn for the tools: the direction "forward_backward".
#include "cli/calls/forward_backward.h"
#include "cli/ops/gated_scan.h"

namespace tandem::tools {
namespace {

using Both = ForwardBackward<kGatedScanForward, kGatedScanBackward>;

std::string shape(const TensorSet& set) { return scan_shape(set.get("x").shape); }

}  // namespace

const Operation kGatedScanForwardBackward = {
    .name = "gated_scan",
    .direction = "forward_backward",
    .function = nullptr,
    .inputs = {"x", "d_out"},
    .optional_inputs = {"decay", "log_decay", "gate", "initial_state", "cu_seqlens",
                        "d_final_state"},
    .outputs = {"out", "final_state", "dx", "d_decay", "d_log_decay", "d_gate", "d_initial_state"},
    .make = Both::make,
    .from_file = nullptr,
    .call = Both::call,
    .workspace_bytes = Both::workspace_bytes,
    .expect = Both::expect,
    .cost = Both::cost,
    .shape = shape,
    .fp32_on_cuda = true};

}  // namespace tandem::tools
