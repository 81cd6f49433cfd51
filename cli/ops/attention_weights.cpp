// attention_weights for the tools: its entries and their costs.
#include "cli/ops/attention_weights.h"

#include <fmt/format.h>

#include "cli/calls/arguments.h"
#include "cli/cases/case_line.h"
#include "cli/cases/draw.h"
#include "cli/ops/attention.h"
#include "cli/ops/ops.h"

namespace tandem::tools {
namespace {

/// A pair of a query and a key is K multiply-adds.
double product_flops(const AttentionWeightsForwardProblem& p) {
  return pair_count(p) * p.H * 2 * p.K;
}

double forward_flops(const TensorSet& set) {
  return product_flops(make_problem(
      host_arguments<AttentionWeightsForwardArgs>(attention_weights_forward_signature(), set)));
}

/// Those of dq and of dk.
double backward_flops(const TensorSet& set) {
  const auto problem = make_problem(
      host_arguments<AttentionWeightsBackwardArgs>(attention_weights_backward_signature(), set));
  return 2 * product_flops(problem.forward);
}

std::string shape_of(const TensorSet& set) {
  const Dims q = set.get("q").shape, k = set.get("k").shape;
  const std::string heads =
      q[2] == k[2] ? fmt::format("H{}", q[2]) : fmt::format("H{}/{}", q[2], k[2]);
  const std::string tokens =
      q[1] == k[1] ? fmt::format("T{}", q[1]) : fmt::format("T{}/{}", q[1], k[1]);
  return fmt::format("B{} {} {} K{}", q[0], tokens, heads, q[3]);
}

/// Sets the axes that a case left out.
void complete(const Line& line, Case& one) {
  one.axes.emplace("TK", one.axis("T"));
  one.axes.emplace("HKV", one.axis("H"));
  if (one.axis("H") % one.axis("HKV") != 0) line.refuse("axes.HKV", "must divide H");
  check_attention_values(line, one);
}

std::map<std::string, std::int64_t> draw_axes(Draw& draw) {
  const auto tokens = [&] { return draw.one_in(10) ? draw.in(0, 1) : draw.log_in(1, 500); };
  const std::int64_t HKV = draw.log_in(1, 4), T = tokens();
  return {{"B", draw.in(0, 3)},
          {"T", T},
          {"TK", draw.one_in(2) ? T : tokens()},
          {"HKV", HKV},
          {"H", HKV * draw.log_in(1, 4)},
          {"K", draw.one_in(2) ? 8 * draw.log_in(1, 32) : draw.in(1, 80)}};
}

void draw_fields(Draw& draw, Case& one) {
  if (draw.one_in(4)) one.scale = draw.of({0.5, 0.05, -0.25});
  one.causal = draw.one_in(3);
}

bool judgeable(const Case& one) {
  const std::int64_t rows = token_count(one) * one.axis("H");
  return rows == 0 || (rows >= 64 && one.axis("K") >= 8);
}

}  // namespace

CaseSchema attention_weights_case_schema() {
  return {.op = "attention_weights",
          .axes = {"B", "T", "H", "K"},
          .optional_axes = {"TK", "HKV"},
          .fields = {"scale", "causal", "values"},
          .check = complete,
          .draw_axes = draw_axes,
          .judgeable = judgeable,
          .draw_fields = draw_fields};
}

std::vector<Operation> attention_weights_operations() {
  const Operation forward = {.name = "attention_weights",
                             .direction = "forward",
                             .calls = {&attention_weights_forward_signature()},
                             .make = make_attention_weights,
                             .expect = expect_attention_weights,
                             .flops = forward_flops,
                             .shape = shape_of};
  const Operation backward = {.name = "attention_weights",
                              .direction = "backward",
                              .calls = {&attention_weights_backward_signature()},
                              .make = make_attention_weights_backward,
                              .expect = expect_attention_weights_backward,
                              .flops = backward_flops,
                              .shape = shape_of};
  Operation both = forward_then_backward(forward, backward);
  both.make = make_attention_weights_both;
  return {forward, backward, both};
}

}  // namespace tandem::tools
