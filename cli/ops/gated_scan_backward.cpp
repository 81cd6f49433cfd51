// gated_scan's backward for the tools: its tensors from a file, its call, its cost.
#include <fmt/format.h>

#include <optional>
#include <stdexcept>

#include "cli/calls/file_inputs.h"
#include "cli/ops/gated_scan.h"
#include "cli/ops/scan.h"

namespace tandem::tools {
namespace {

const std::vector<std::string> kInputs = {"x", "d_out"};
const std::vector<std::string> kOptional = {"decay",         "log_decay",  "gate",
                                            "initial_state", "cu_seqlens", "d_final_state"};

/// Inputs that can have gradients.
const std::vector<std::string> kDifferentiated = {"x", "decay", "log_decay", "gate",
                                                  "initial_state"};

TensorSet from_file(const SafetensorsFile& file, const Settings& settings) {
  TensorSet set = read_inputs(file, "gated_scan backward", kInputs, kOptional);
  for (const auto& [name, text] : settings) {
    throw std::runtime_error(fmt::format("--set {}: gated_scan backward has no settings", name));
  }
  add_gradients(set, kDifferentiated);
  return set;
}

GatedScanBackwardArgs to_args(const TensorSet& set, const std::vector<void*>& bases,
                              Device device) {
  const Views views(set, bases, device);
  return {.x = views.required("x"),
          .decay = views.optional("decay"),
          .log_decay = views.optional("log_decay"),
          .gate = views.optional("gate"),
          .initial_state = views.optional("initial_state"),
          .cu_seqlens = views.optional("cu_seqlens"),
          .d_out = views.required("d_out"),
          .d_final_state = views.optional("d_final_state"),
          .dx = views.optional("dx"),
          .d_decay = views.optional("d_decay"),
          .d_log_decay = views.optional("d_log_decay"),
          .d_gate = views.optional("d_gate"),
          .d_initial_state = views.optional("d_initial_state")};
}

void call(const TensorSet& set, const std::vector<void*>& bases, Device device,
          const Context& context) {
  gated_scan_backward(to_args(set, bases, device), context);
}

std::size_t workspace_bytes(const TensorSet& set, const std::vector<void*>& bases, Device device) {
  return gated_scan_backward_workspace_bytes(to_args(set, bases, device),
                                             device_properties(device));
}

TensorSet make(const Case& one, DType dtype, std::uint64_t seed) {
  TensorSet set = make_scan(one, dtype, seed, true);
  differentiate_scan(set, one, seed, kDifferentiated);
  return set;
}

Cost cost(const TensorSet& set) { return {bytes_of(set, kGatedScanBackward), 0}; }

std::string shape(const TensorSet& set) { return scan_shape(set.get("x").shape); }

}  // namespace

GatedScanBackwardProblem host_scan_backward_problem(const TensorSet& set) {
  return make_problem(to_args(set, host_bases(set), Device::cpu()));
}

const Operation kGatedScanBackward = {
    .name = "gated_scan",
    .direction = "backward",
    .function = "gated_scan_backward",
    .inputs = kInputs,
    .optional_inputs = kOptional,
    .outputs = {"dx", "d_decay", "d_log_decay", "d_gate", "d_initial_state"},
    .make = make,
    .from_file = from_file,
    .call = call,
    .workspace_bytes = workspace_bytes,
    .expect = expect_gated_scan_backward,
    .cost = cost,
    .shape = shape,
    .fp32_on_cuda = true};

}  // namespace tandem::tools
