// linear_scan for the tools: its tensors, its call, its cost.
#include "cli/ops/linear_scan.h"

#include <fmt/format.h>

#include <cmath>
#include <optional>
#include <stdexcept>

#include "cli/calls/file_inputs.h"
#include "cli/ops/scan.h"

namespace tandem::tools {
namespace {

const std::vector<std::string> kInputs = {"u", "weight"};
const std::vector<std::string> kOptional = {"decay", "log_decay", "gate", "initial_state",
                                            "cu_seqlens"};

TensorSet from_file(const SafetensorsFile& file, const Settings& settings) {
  TensorSet set = read_inputs(file, "linear_scan forward", kInputs, kOptional);
  const bool with_state = wants_final_state(set, "linear_scan forward", settings);
  const NamedTensor u = set.get("u");
  const Dims weight = set.get("weight").shape;
  if (u.shape.rank() != 3 || weight.rank() != 2) {
    throw std::runtime_error(
        fmt::format("{}: u must have shape [B,T,d] and weight [D,d], got {} and {}", file.path,
                    to_string(u.shape), to_string(weight)));
  }
  add_scan_outputs(set, u.dtype, {u.shape[0], u.shape[1], weight[0]}, with_state);
  return set;
}

LinearScanForwardArgs to_args(const TensorSet& set, const std::vector<void*>& bases,
                              Device device) {
  const Views views(set, bases, device);
  return {.u = views.required("u"),
          .weight = views.required("weight"),
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
  linear_scan_forward(to_args(set, bases, device), context);
}

std::size_t workspace_bytes(const TensorSet& set, const std::vector<void*>& bases, Device device) {
  return linear_scan_forward_workspace_bytes(to_args(set, bases, device),
                                             device_properties(device));
}

Cost cost(const TensorSet& set) {
  return {bytes_of(set, kLinearScanForward), projection_flops(set)};
}

}  // namespace

/// Makes gated_scan's tensors with u and the weight instead of x, such that x = u W^T has its usual
/// size.
TensorSet make_linear_scan(const Case& one, DType dtype, std::uint64_t seed) {
  TensorSet set = make_scan(one, dtype, seed, false);
  const Dims u{one.axis("B"), one.axis("T"), one.axis("d")};
  const std::int64_t d = u[2], gap = one.strides == Strides::kPadded ? 32
                                     : one.strides == Strides::kOdd  ? 5
                                                                     : 0;
  const NamedTensor added =
      add_tensor(set, "u", dtype, u, scan_strides(one.strides, u, false), false, scan_shift(one));
  fill_normal(added, set.buffers, RandomStream(seed + one.seed, "u"));
  const NamedTensor weight =
      add_tensor(set, "weight", dtype, {one.axis("D"), d}, {d + gap, 1}, false, scan_shift(one));
  const RandomStream random(seed + one.seed, "weight");
  const float scale = 1 / std::sqrt(static_cast<float>(d));
  std::byte* data = set.buffers[weight.buffer].data() + weight.offset;
  for_each_element(weight, [&](std::int64_t offset, std::int64_t i) {
    store(dtype, data, offset, scale * random.normal(i));
  });
  return set;
}

LinearScanForwardProblem linear_problem_at(const TensorSet& set, const std::vector<void*>& bases,
                                           Device device) {
  return make_problem(to_args(set, bases, device));
}

LinearScanForwardProblem host_linear_problem(const TensorSet& set) {
  return linear_problem_at(set, host_bases(set), Device::cpu());
}

std::string linear_scan_shape(const TensorSet& set) {
  const Dims u = set.get("u").shape;
  return fmt::format("B{} T{} d{} D{}", u[0], u[1], u[2], set.get("weight").shape[0]);
}

double projection_flops(const TensorSet& set) {
  return 2.0 * static_cast<double>(set.get("u").shape.product()) *
         static_cast<double>(set.get("weight").shape[0]);
}

const Operation kLinearScanForward = {
    .name = "linear_scan",
    .direction = "forward",
    .function = "linear_scan_forward",
    .inputs = kInputs,
    .optional_inputs = kOptional,
    .outputs = {"out", "final_state"},
    .make = make_linear_scan,
    .from_file = from_file,
    .call = call,
    .workspace_bytes = workspace_bytes,
    .expect = expect_linear_scan,
    .cost = cost,
    .shape = linear_scan_shape,
    .baselines = {{"unfused", "unfused.gemm_scan_gate", unfused_linear_scan,
                   unfused_linear_scan_workspace_bytes},
                  {"unfused_two", "unfused_two.gemm_gated_scan", unfused_two_linear_scan,
                   unfused_two_linear_scan_workspace_bytes}}};

}  // namespace tandem::tools
