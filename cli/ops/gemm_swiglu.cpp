// gemm_swiglu for the tools: its entries, their costs and the fields of its cases.
#include "ops/gemm_swiglu.h"

#include <fmt/format.h>

#include <algorithm>

#include "cli/cases/case_line.h"
#include "cli/cases/draw.h"
#include "cli/ops/gemm_swiglu.h"
#include "cli/ops/ops.h"

namespace tandem::tools {
namespace {

/// Of the products of all rows with both weights.
double product_flops(const TensorSet& set) {
  const auto rows = static_cast<double>(set.get("x").shape[0]);
  return 4 * rows * static_cast<double>(set.get("gate_weight").shape.product());
}

std::string shape(const TensorSet& set) {
  const Dims x = set.get("x").shape;
  return fmt::format("M{} d{} F{}", x[0], x[1], set.get("gate_weight").shape[0]);
}

void check(const Line& line, Case& one) {
  if (std::ranges::find(kGateActivations, one.activation) == kGateActivations.end()) {
    line.refuse("activation", fmt::format("must be one of {}, got {}",
                                          fmt::join(kGateActivations, ", "), one.activation));
  }
  if (one.kept == Kept::kNo) {
    line.refuse("kept", "must be yes or training: its backward needs what its forward keeps");
  }
  if (one.norm == Norm::kNone && one.rstd_given) line.refuse("rstd", "needs a norm");
  if (one.norm == Norm::kNone && one.rows != RowValues::kNormal)
    line.refuse("rows", "needs a norm");
  if (one.norm != Norm::kNone && one.around) line.refuse("around", "cannot be given with a norm");
}

/// Of random cases. Sums of few products may cancel, and few outputs may all be rounded by as much
/// as one can be.
constexpr std::int64_t kFewestRows = 40, kFewestColumns = 16;
constexpr std::int64_t kFewestNormalized =
    64;  // columns of x: the norm weight's gradient has those

std::map<std::string, std::int64_t> draw_axes(Draw& draw) {
  return {{"M", draw.one_in(10) ? 0 : draw.log_in(kFewestRows, 400)},
          {"d", draw.log_in(8, 200)},
          {"F", draw.one_in(10)  ? 0
                : draw.one_in(2) ? 8 * draw.log_in(2, 40)
                                 : draw.in(kFewestColumns, 300)}};
}

void draw_fields(Draw& draw, Case& one) {
  // Rows that are one row would not make an error one of roundings.
  if (one.strides == Strides::kBroadcast) one.strides = Strides::kPadded;
  one.activation = kGateActivations[draw.in(0, std::ssize(kGateActivations) - 1)];
  one.norm = draw.of({Norm::kNone, Norm::kSame, Norm::kFp32});
  if (one.axis("d") < kFewestNormalized) one.norm = Norm::kNone;
  one.rstd_given = one.norm != Norm::kNone && draw.one_in(3);
  one.kept = draw.of({Kept::kYes, Kept::kTraining});
  one.fp32_gradients = draw.one_in(3);
  one.accumulate = draw.one_in(3);
}

bool judgeable(const Case& one) {
  const auto fits = [&](const char* axis, std::int64_t fewest) {
    return one.axis(axis) == 0 || one.axis(axis) >= fewest;
  };
  return fits("M", kFewestRows) && fits("F", kFewestColumns);
}

}  // namespace

CaseSchema gemm_swiglu_case_schema() {
  return {
      .op = "gemm_swiglu",
      .axes = {"M", "d", "F"},
      .optional_axes = {},
      .fields = {"activation", "around", "norm", "rstd", "rows", "kept", "gradients", "accumulate"},
      .check = check,
      .draw_axes = draw_axes,
      .judgeable = judgeable,
      .draw_fields = draw_fields};
}

std::vector<Operation> gemm_swiglu_operations() {
  const Operation forward = {.name = "gemm_swiglu",
                             .direction = "forward",
                             .calls = {&gemm_swiglu_forward_signature()},
                             .make = make_gemm_swiglu,
                             .expect = expect_gemm_swiglu,
                             .flops = product_flops,
                             .shape = shape};
  const Operation backward = {.name = "gemm_swiglu",
                              .direction = "backward",
                              .calls = {&gemm_swiglu_backward_signature()},
                              .make = make_gemm_swiglu_backward,
                              .expect = expect_gemm_swiglu_backward,
                              // Those of dn, and of the weights' gradients.
                              .flops = [](const TensorSet& set) { return 2 * product_flops(set); },
                              .shape = shape};
  Operation both = forward_then_backward(forward, backward);
  both.make = make_gemm_swiglu_both;
  return {forward, backward, both};
}

}  // namespace tandem::tools
