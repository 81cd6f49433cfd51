// linear_scan for the tools: its entries and their costs.
#include "ops/linear_scan.h"

#include <fmt/format.h>

#include "cli/calls/keep_outputs.h"
#include "cli/cases/draw.h"
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

TensorSet make_forward(const Case& one, DType dtype, std::uint64_t seed) {
  return make_linear_scan(one, dtype, seed, one.kept == Kept::kYes);
}

TensorSet make_backward(const Case& one, DType dtype, std::uint64_t seed) {
  const bool kept = one.kept != Kept::kNo;
  TensorSet set = make_linear_scan(one, dtype, seed, kept);
  if (kept) {
    keep_outputs<LinearScanForwardArgs>(linear_scan_forward_signature(), set, {"x", "states"});
  }
  return differentiate_scan(std::move(set), linear_scan_backward_signature(), one, seed);
}

/// Makes those of a backward that takes what the forward before it writes.
TensorSet make_second(const Case& one, DType dtype, std::uint64_t seed) {
  return differentiate_scan(make_linear_scan(one, dtype, seed, one.kept != Kept::kNo),
                            linear_scan_backward_signature(), one, seed);
}

}  // namespace

CaseSchema linear_scan_case_schema() {
  return scan_case_schema("linear_scan", {"B", "T", "d", "D"});
}

std::vector<Operation> linear_scan_operations() {
  const Operation forward = {.name = "linear_scan",
                             .direction = "forward",
                             .calls = {&linear_scan_forward_signature()},
                             .make = make_forward,
                             .expect = expect_linear_scan,
                             .flops = projection_flops,
                             .shape = shape};
  const Operation backward = {
      .name = "linear_scan",
      .direction = "backward",
      .calls = {&linear_scan_backward_signature()},
      .make = make_backward,
      .expect = expect_linear_scan_backward,
      // dx W and dx^T u, and u W^T again where the forward did not keep it.
      .flops = [](const TensorSet& set) { return (set.find("x") ? 2 : 3) * projection_flops(set); },
      .shape = shape};
  Operation second = backward;
  second.make = make_second;
  return {forward, backward, forward_then_backward(forward, second)};
}

}  // namespace tandem::tools
