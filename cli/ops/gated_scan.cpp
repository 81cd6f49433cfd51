// gated_scan for the tools: its entries and their costs.
#include "ops/gated_scan.h"

#include <fmt/format.h>

#include "cli/ops/ops.h"
#include "cli/ops/scan.h"

namespace tandem::tools {

CaseSchema gated_scan_case_schema() { return scan_case_schema("gated_scan", {"B", "T", "D"}); }

std::vector<Operation> gated_scan_operations() {
  const auto no_flops = [](const TensorSet&) { return 0.0; };  // bytes bind
  const auto shape_of = [](const char* tokens) {
    return [tokens](const TensorSet& set) {
      const Dims x = set.get(tokens).shape;
      return fmt::format("B{} T{} D{}", x[0], x[1], x[2]);
    };
  };
  const ScanMakers makers = make_scan_by<GatedScanForwardArgs>(
      make_gated_scan, gated_scan_forward_signature(), gated_scan_backward_signature());
  const Operation forward = {.name = "gated_scan",
                             .direction = "forward",
                             .calls = {&gated_scan_forward_signature()},
                             .make = makers.forward,
                             .expect = expect_gated_scan,
                             .flops = no_flops,
                             .shape = shape_of("x"),
                             .fp32_on_cuda = true};
  const Operation backward = {.name = "gated_scan",
                              .direction = "backward",
                              .calls = {&gated_scan_backward_signature()},
                              .make = makers.backward,
                              .expect = expect_gated_scan_backward,
                              .flops = no_flops,
                              .shape = shape_of("x"),
                              .fp32_on_cuda = true};
  Operation second = backward;
  second.make = makers.second;
  Operation decay = forward, carry = forward, carry_backward = forward;
  decay.direction = "decay";
  decay.calls = {&gated_scan_decay_signature()};
  decay.make = make_gated_scan_decay;
  decay.expect = expect_gated_scan_decay;
  decay.shape = shape_of("decay");
  carry.direction = "carry";
  carry.calls = {&gated_scan_carry_signature()};
  carry.make = make_gated_scan_carry;
  carry.expect = expect_gated_scan_carry;
  carry.shape = shape_of("out");
  carry_backward.direction = "carry_backward";
  carry_backward.calls = {&gated_scan_carry_backward_signature()};
  carry_backward.make = make_gated_scan_carry_backward;
  carry_backward.expect = expect_gated_scan_carry_backward;
  carry_backward.shape = shape_of("d_out");
  return {forward, backward, forward_then_backward(forward, second), decay, carry, carry_backward};
}

}  // namespace tandem::tools
