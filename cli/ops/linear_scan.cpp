// linear_scan for the tools: its entries and their costs.
#include "ops/linear_scan.h"

#include <fmt/format.h>

#include "cli/ops/ops.h"
#include "cli/ops/scan.h"

namespace tandem::tools {
namespace {

/// Of one product of all tokens with W.
double projection_flops(const TensorSet& set) {
  return 2.0 * static_cast<double>(set.get("u").shape.product()) *
         static_cast<double>(set.get("weight").shape[0]);
}

std::string shape(const TensorSet& set) {
  const Dims u = set.get("u").shape;
  return fmt::format("B{} T{} d{} D{}", u[0], u[1], u[2], set.get("weight").shape[0]);
}

}  // namespace

CaseSchema linear_scan_case_schema() {
  return scan_case_schema("linear_scan", {"B", "T", "d", "D"});
}

std::vector<Operation> linear_scan_operations() {
  const ScanMakers makers = make_scan_by<LinearScanForwardArgs>(
      make_linear_scan, linear_scan_forward_signature(), linear_scan_backward_signature());
  const Operation forward = {.name = "linear_scan",
                             .direction = "forward",
                             .calls = {&linear_scan_forward_signature()},
                             .make = makers.forward,
                             .expect = expect_linear_scan,
                             .flops = projection_flops,
                             .shape = shape};
  const Operation backward = {
      .name = "linear_scan",
      .direction = "backward",
      .calls = {&linear_scan_backward_signature()},
      .make = makers.backward,
      .expect = expect_linear_scan_backward,
      // dx W and dx^T u, and u W^T again where the forward did not keep it.
      .flops = [](const TensorSet& set) { return (set.find("x") ? 2 : 3) * projection_flops(set); },
      .shape = shape};
  Operation second = backward;
  second.make = makers.second;
  return {forward, backward, forward_then_backward(forward, second)};
}

}  // namespace tandem::tools
