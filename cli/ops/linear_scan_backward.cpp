// linear_scan's backward for the tools: its tensors, its call, its cost.
#include <fmt/format.h>

#include <optional>
#include <stdexcept>

#include "cli/calls/file_inputs.h"
#include "cli/ops/linear_scan.h"
#include "cli/ops/scan.h"

namespace tandem::tools {
namespace {

const std::vector<std::string> kInputs = {"u", "weight", "d_out"};
const std::vector<std::string> kOptional = {"decay",         "log_decay",  "gate",
                                            "initial_state", "cu_seqlens", "d_final_state"};
/// Inputs that can have gradients.
const std::vector<std::string> kDifferentiated = {"u",         "weight", "decay",
                                                  "log_decay", "gate",   "initial_state"};

TensorSet from_file(const SafetensorsFile& file, const Settings& settings) {
  TensorSet set = read_inputs(file, "linear_scan backward", kInputs, kOptional);
  for (const auto& [name, text] : settings) {
    throw std::runtime_error(fmt::format("--set {}: linear_scan backward has no settings", name));
  }
  add_gradients(set, kDifferentiated);
  return set;
}

LinearScanBackwardArgs to_args(const TensorSet& set, const std::vector<void*>& bases,
                               Device device) {
  const Views views(set, bases, device);
  return {.u = views.required("u"),
          .weight = views.required("weight"),
          .decay = views.optional("decay"),
          .log_decay = views.optional("log_decay"),
          .gate = views.optional("gate"),
          .initial_state = views.optional("initial_state"),
          .cu_seqlens = views.optional("cu_seqlens"),
          .d_out = views.required("d_out"),
          .d_final_state = views.optional("d_final_state"),
          .du = views.optional("du"),
          .d_weight = views.optional("d_weight"),
          .d_decay = views.optional("d_decay"),
          .d_log_decay = views.optional("d_log_decay"),
          .d_gate = views.optional("d_gate"),
          .d_initial_state = views.optional("d_initial_state")};
}

TensorSet make(const Case& one, DType dtype, std::uint64_t seed) {
  TensorSet set = make_linear_scan(one, dtype, seed);
  differentiate_scan(set, one, seed, kDifferentiated);
  return set;
}

void call(const TensorSet& set, const std::vector<void*>& bases, Device device,
          const Context& context) {
  linear_scan_backward(to_args(set, bases, device), context);
}

std::size_t workspace_bytes(const TensorSet& set, const std::vector<void*>& bases, Device device) {
  return linear_scan_backward_workspace_bytes(to_args(set, bases, device),
                                              device_properties(device));
}

/// Three products: u W^T again, dx W and dx^T u.
Cost cost(const TensorSet& set) {
  return {bytes_of(set, kLinearScanBackward), 3 * projection_flops(set)};
}

}  // namespace

LinearScanBackwardProblem host_linear_backward_problem(const TensorSet& set) {
  return make_problem(to_args(set, host_bases(set), Device::cpu()));
}

const Operation kLinearScanBackward = {
    .name = "linear_scan",
    .direction = "backward",
    .function = "linear_scan_backward",
    .inputs = kInputs,
    .optional_inputs = kOptional,
    .outputs = {"du", "d_weight", "d_decay", "d_log_decay", "d_gate", "d_initial_state"},
    .make = make,
    .from_file = from_file,
    .call = call,
    .workspace_bytes = workspace_bytes,
    .expect = expect_linear_scan_backward,
    .cost = cost,
    .shape = linear_scan_shape};

}  // namespace tandem::tools
