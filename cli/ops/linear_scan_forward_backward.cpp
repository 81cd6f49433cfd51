// linear_scan's forward and backward in turn for the tools: the direction "forward_backward".
#include "cli/calls/forward_backward.h"
#include "cli/ops/linear_scan.h"

namespace tandem::tools {
namespace {

using Both = ForwardBackward<kLinearScanForward, kLinearScanBackward>;

}  // namespace

const Operation kLinearScanForwardBackward = {
    .name = "linear_scan",
    .direction = "forward_backward",
    .function = nullptr,
    .inputs = {"u", "weight", "d_out"},
    .optional_inputs = {"decay", "log_decay", "gate", "initial_state", "cu_seqlens",
                        "d_final_state"},
    .outputs = {"out", "final_state", "du", "d_weight", "d_decay", "d_log_decay", "d_gate",
                "d_initial_state"},
    .make = Both::make,
    .from_file = nullptr,
    .call = Both::call,
    .workspace_bytes = Both::workspace_bytes,
    .expect = Both::expect,
    .cost = Both::cost,
    .shape = linear_scan_shape};

}  // namespace tandem::tools
