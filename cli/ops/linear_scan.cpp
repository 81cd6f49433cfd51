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
  const Operation forward = {.name = "linear_scan",
                             .direction = "forward",
                             .calls = {&linear_scan_forward_signature()},
                             .make = make_linear_scan,
                             .expect = expect_linear_scan,
                             .flops = projection_flops,
                             .shape = shape,
                             .runs_files = true};
  const Operation backward = {
      .name = "linear_scan",
      .direction = "backward",
      .calls = {&linear_scan_backward_signature()},
      .make =
          [](const Case& one, DType dtype, std::uint64_t seed) {
            return differentiate_scan(make_linear_scan(one, dtype, seed),
                                      linear_scan_backward_signature(), one, seed);
          },
      .expect = expect_linear_scan_backward,
      // u W^T again, dx W and dx^T u.
      .flops = [](const TensorSet& set) { return 3 * projection_flops(set); },
      .shape = shape,
      .runs_files = true};
  return {forward, backward, forward_then_backward(forward, backward)};
}

}  // namespace tandem::tools
