// causal_conv1d for the tools: its entries and their costs.
#include "cli/ops/causal_conv1d.h"

#include <fmt/format.h>

#include "cli/cases/case_line.h"
#include "cli/cases/draw.h"
#include "cli/cases/random_case.h"
#include "cli/ops/ops.h"
#include "ops/causal_conv1d.h"

namespace tandem::tools {
namespace {

void check_case_fields(const Line& line, Case& one) {
  if (one.axis("W") < kFewestTaps || one.axis("W") > kMostTaps) {
    line.refuse("axes.W", "must be in [2,4]");
  }
  if (one.activation != "silu" && one.activation != "none") {
    line.refuse("activation", "must be silu or none");
  }
  if (one.states == States::kInPlace) line.refuse("states", "cannot be in_place");
}

std::map<std::string, std::int64_t> draw_axes(Draw& draw) {
  return {{"B", draw.in(0, 3)},
          {"T", draw.one_in(10) ? draw.in(0, 1) : draw.log_in(1, 2000)},
          {"D", draw.one_in(2) ? 4 * draw.log_in(1, 150) : draw.log_in(1, 600)},
          {"W", draw.in(kFewestTaps, kMostTaps)}};
}

void draw_fields(Draw& draw, Case& one) {
  one.states = draw.of({States::kNone, States::kInitial, States::kFinal, States::kBoth});
  one.activation = draw.one_in(2) ? "silu" : "none";
  one.bias = draw.of({Norm::kNone, Norm::kSame, Norm::kFp32});
  one.fp32_weight = draw.one_in(2);
  if (!draw.one_in(2) || one.has_direction("step")) return;
  one.axes["B"] = 1;
  one.cu_seqlens = draw_offsets(draw, one.axis("T"), draw.in(0, 8));
}

/// Of few sums, one that cancels carries the error.
bool judgeable(const Case& one) {
  constexpr std::int64_t kFewestTokens = 500, kFewestChannels = 20;
  if (one.has_direction("step")) return one.axis("B") * one.axis("D") >= 200;
  const std::int64_t tokens = token_count(one), D = one.axis("D");
  return tokens == 0 || (tokens * D >= kFewestTokens && D >= kFewestChannels);
}

std::string shape_of(const TensorSet& set) {
  const Dims x = set.get("x").shape;
  const std::int64_t W = set.get("weight").shape[1];
  if (x.rank() == 2) return fmt::format("B{} D{} W{}", x[0], x[1], W);
  return fmt::format("B{} T{} D{} W{}", x[0], x[1], x[2], W);
}

}  // namespace

CaseSchema causal_conv1d_case_schema() {
  return {.op = "causal_conv1d",
          .axes = {"B", "T", "D", "W"},
          .optional_axes = {},
          .fields = {"states", "cu_seqlens", "lengths", "activation", "bias", "weight"},
          .check = check_case_fields,
          .draw_axes = draw_axes,
          .judgeable = judgeable,
          .draw_fields = draw_fields};
}

std::vector<Operation> causal_conv1d_operations() {
  const auto no_flops = [](const TensorSet&) { return 0.0; };  // bytes bind
  const Operation forward = {.name = "causal_conv1d",
                             .direction = "forward",
                             .calls = {&causal_conv1d_forward_signature()},
                             .make = make_causal_conv1d,
                             .expect = expect_causal_conv1d,
                             .flops = no_flops,
                             .shape = shape_of,
                             .fp32_on_cuda = true};
  Operation backward = forward, step = forward;
  backward.direction = "backward";
  backward.calls = {&causal_conv1d_backward_signature()};
  backward.make = make_causal_conv1d_backward;
  backward.expect = expect_causal_conv1d_backward;
  step.direction = "step";
  step.calls = {&causal_conv1d_step_signature()};
  step.make = make_causal_conv1d_step;
  step.expect = expect_causal_conv1d_step;
  return {forward, backward, forward_then_backward(forward, backward), step};
}

}  // namespace tandem::tools
