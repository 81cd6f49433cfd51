// gated_scan for the tools: its entries and their costs.
#include "ops/gated_scan.h"

#include <fmt/format.h>

#include "cli/ops/ops.h"
#include "cli/ops/scan.h"

namespace tandem::tools {

CaseSchema gated_scan_case_schema() { return scan_case_schema("gated_scan", {"B", "T", "D"}); }

std::vector<Operation> gated_scan_operations() {
  const auto no_flops = [](const TensorSet&) { return 0.0; };  // bytes bind
  const auto shape = [](const TensorSet& set) {
    const Dims x = set.get("x").shape;
    return fmt::format("B{} T{} D{}", x[0], x[1], x[2]);
  };
  const Operation forward = {.name = "gated_scan",
                             .direction = "forward",
                             .calls = {&gated_scan_forward_signature()},
                             .make = make_gated_scan,
                             .expect = expect_gated_scan,
                             .flops = no_flops,
                             .shape = shape,
                             .fp32_on_cuda = true};
  const Operation backward = {.name = "gated_scan",
                              .direction = "backward",
                              .calls = {&gated_scan_backward_signature()},
                              .make =
                                  [](const Case& one, DType dtype, std::uint64_t seed) {
                                    return differentiate_scan(make_gated_scan(one, dtype, seed),
                                                              gated_scan_backward_signature(), one,
                                                              seed);
                                  },
                              .expect = expect_gated_scan_backward,
                              .flops = no_flops,
                              .shape = shape,
                              .fp32_on_cuda = true};
  return {forward, backward, forward_then_backward(forward, backward)};
}

}  // namespace tandem::tools
