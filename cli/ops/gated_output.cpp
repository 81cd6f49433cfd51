// gated_output for the tools: its entries, their costs and the fields of its cases.
#include "ops/gated_output.h"

#include <fmt/format.h>

#include <algorithm>

#include "cli/cases/case_line.h"
#include "cli/cases/draw.h"
#include "cli/ops/gated_output.h"
#include "cli/ops/ops.h"

namespace tandem::tools {
namespace {

double product_flops(const TensorSet& set) {
  const auto rows = static_cast<double>(set.get("o").shape[0]);
  return 2 * rows * static_cast<double>(set.get("weight").shape.product());
}

std::string shape(const TensorSet& set) {
  const Dims weight = set.get("weight").shape;
  return fmt::format("M{} d_in{} d{}", set.get("o").shape[0], weight[1], weight[0]);
}

template <class Words>
bool is_among(const Words& words, const std::string& word) {
  return std::ranges::find(words, word) != words.end();
}

void check(const Line& line, Case& one) {
  if (one.output_gate != "none" && !is_among(kOutputGates, one.output_gate)) {
    line.refuse("output_gate", fmt::format("must be none or one of {}, got {}",
                                           fmt::join(kOutputGates, ", "), one.output_gate));
  }
  if (!is_among(kOutputNorms, one.output_norm)) {
    line.refuse("output_norm", fmt::format("must be one of {}, got {}",
                                           fmt::join(kOutputNorms, ", "), one.output_norm));
  }
  if (one.kept == Kept::kNo) {
    line.refuse("kept", "must be yes or training: its backward needs what its forward keeps");
  }
  const bool groups = one.group_norm != Norm::kNone, normalizes = one.output_norm != "none";
  const auto needs = [&](const char* field, bool given, bool there, const char* what) {
    if (given && !there) line.refuse(field, std::string("needs ") + what);
  };
  needs("group_width", one.group_width != 0, groups, "a group_norm");
  needs("group_weight", one.group_weight_by_column, groups, "a group_norm");
  needs("behind_gate", one.behind_gate, groups && one.output_gate != "none",
        "a group_norm and a gate");
  needs("norm", one.norm != Norm::kNone, normalizes, "an output_norm");
  needs("sum", one.sum, normalizes, "an output_norm");
  needs("gated", one.gated_again, groups || one.output_gate != "none", "a group_norm or a gate");
  // Else what is not normalised leaves fp16's range.
  needs("rows", one.rows != RowValues::kNormal, groups || (normalizes && one.output_gate == "none"),
        "a group_norm, or an output_norm without a gate");
  if (groups && one.group_width == 0) one.group_width = one.axis("d_in");
  if (groups && one.axis("d_in") % one.group_width != 0) {
    line.refuse("group_width", "must divide d_in");
  }
}

/// Of random cases. Sums of few products may cancel, and few outputs may all be rounded by as much
/// as one can be.
constexpr std::int64_t kFewestRows = 40, kFewestColumns = 40;
constexpr std::int64_t kFewestWeights = 64;  // of h: their gradient has as many values

std::map<std::string, std::int64_t> draw_axes(Draw& draw) {
  return {{"M", draw.one_in(10) ? 0 : draw.log_in(kFewestRows, 400)},
          {"d_in", draw.one_in(2) ? 8 * draw.log_in(2, 40) : draw.log_in(16, 200)},
          {"d", draw.one_in(2) ? 8 * draw.log_in(5, 40) : draw.log_in(kFewestColumns, 300)}};
}

void draw_fields(Draw& draw, Case& one) {
  // Rows that are one row would not make an error one of roundings.
  if (one.strides == Strides::kBroadcast) one.strides = Strides::kPadded;
  one.output_gate = draw.of({"none", "plain", "silu", "sigmoid"});
  const auto norm = [&] { return draw.of({Norm::kNone, Norm::kSame, Norm::kFp32}); };
  const bool gates = one.output_gate != "none";
  one.group_norm = norm();
  if (one.group_norm != Norm::kNone) {
    const std::int64_t d_in = one.axis("d_in");
    const auto parts = draw.of<std::int64_t>({1, 2, 4});
    one.group_width = d_in % parts == 0 ? d_in / parts : d_in;
    one.group_weight_by_column = draw.one_in(2);
    one.behind_gate = gates && draw.one_in(2);
    if ((one.group_weight_by_column ? d_in : one.group_width) < kFewestWeights) {
      one.group_norm = Norm::kNone;
      one.group_width = 0;
      one.group_weight_by_column = one.behind_gate = false;
    }
  }
  one.output_norm = draw.of({"none", "layer_norm", "rms_norm"});
  if (one.output_norm != "none") {
    one.norm = norm();
    one.sum = draw.one_in(2);
  }
  one.bias = norm();
  one.residual = !draw.one_in(3);
  one.gated_again = (gates || one.group_norm != Norm::kNone) && draw.one_in(2);
  one.kept = draw.of({Kept::kYes, Kept::kTraining});
  one.fp32_gradients = draw.one_in(3);
  one.accumulate = draw.one_in(3);
}

bool judgeable(const Case& one) {
  return (one.axis("M") == 0 || one.axis("M") >= kFewestRows) && one.axis("d") >= kFewestColumns;
}

}  // namespace

CaseSchema gated_output_case_schema() {
  return {.op = "gated_output",
          .axes = {"M", "d_in", "d"},
          .optional_axes = {},
          .fields = {"output_gate", "group_norm", "group_width", "group_weight", "behind_gate",
                     "bias", "residual", "output_norm", "norm", "sum", "gated", "rows", "kept",
                     "gradients", "accumulate"},
          .check = check,
          .draw_axes = draw_axes,
          .judgeable = judgeable,
          .draw_fields = draw_fields};
}

std::vector<Operation> gated_output_operations() {
  const Operation forward = {.name = "gated_output",
                             .direction = "forward",
                             .calls = {&gated_output_forward_signature()},
                             .make = make_gated_output,
                             .expect = expect_gated_output,
                             .flops = product_flops,
                             .shape = shape};
  const Operation backward = {.name = "gated_output",
                              .direction = "backward",
                              .calls = {&gated_output_backward_signature()},
                              .make = make_gated_output_backward,
                              .expect = expect_gated_output_backward,
                              // Those of d_a, and of the weight's gradient.
                              .flops = [](const TensorSet& set) { return 2 * product_flops(set); },
                              .shape = shape};
  Operation both = forward_then_backward(forward, backward);
  both.make = make_gated_output_both;
  return {forward, backward, both};
}

}  // namespace tandem::tools
