// gated_scan for the tools: its tensors from a file, its call, its cost.
#include "cli/ops/gated_scan.h"

#include <fmt/format.h>

#include <optional>

#include "cli/calls/file_inputs.h"
#include "cli/ops/scan.h"

namespace tandem::tools {
namespace {

const std::vector<std::string> kInputs = {"x"};
const std::vector<std::string> kOptional = {"decay", "log_decay", "gate", "initial_state",
                                            "cu_seqlens"};

TensorSet from_file(const SafetensorsFile& file, const Settings& settings) {
  TensorSet set = read_inputs(file, "gated_scan forward", kInputs, kOptional);
  const bool with_state = wants_final_state(set, "gated_scan forward", settings);
  const NamedTensor x = set.get("x");
  add_scan_outputs(set, x.dtype, x.shape, with_state);
  return set;
}

GatedScanForwardArgs to_args(const TensorSet& set, const std::vector<void*>& bases, Device device) {
  const Views views(set, bases, device);
  return {.x = views.required("x"),
          .decay = views.optional("decay"),
          .log_decay = views.optional("log_decay"),
          .gate = views.optional("gate"),
          .initial_state = views.optional("initial_state"),
          .cu_seqlens = views.optional("cu_seqlens"),
          .out = views.required("out"),
          .final_state = views.optional("final_state")};
}

void call(const TensorSet& set, const std::vector<void*>& bases, Device device,
          const Context& context) {
  gated_scan_forward(to_args(set, bases, device), context);
}

std::size_t workspace_bytes(const TensorSet& set, const std::vector<void*>& bases, Device device) {
  return gated_scan_forward_workspace_bytes(to_args(set, bases, device), device_properties(device));
}

TensorSet make(const Case& one, DType dtype, std::uint64_t seed) {
  return make_scan(one, dtype, seed, true);
}

/// No matrix work: bytes bind.
Cost cost(const TensorSet& set) { return {bytes_of(set, kGatedScanForward), 0}; }

std::string shape(const TensorSet& set) { return scan_shape(set.get("x").shape); }

}  // namespace

GatedScanForwardProblem scan_problem_at(const TensorSet& set, const std::vector<void*>& bases,
                                        Device device) {
  return make_problem(to_args(set, bases, device));
}

GatedScanForwardProblem host_scan_problem(const TensorSet& set) {
  return scan_problem_at(set, host_bases(set), Device::cpu());
}

std::string scan_shape(const Dims& x) { return fmt::format("B{} T{} D{}", x[0], x[1], x[2]); }

const Operation kGatedScanForward = {
    .name = "gated_scan",
    .direction = "forward",
    .function = "gated_scan_forward",
    .inputs = kInputs,
    .optional_inputs = kOptional,
    .outputs = {"out", "final_state"},
    .make = make,
    .from_file = from_file,
    .call = call,
    .workspace_bytes = workspace_bytes,
    .expect = expect_gated_scan,
    .cost = cost,
    .shape = shape,
    .fp32_on_cuda = true,
    .baselines = {
        {"unfused", "unfused.scan_gate", unfused_gated_scan, unfused_gated_scan_workspace_bytes}}};

}  // namespace tandem::tools
