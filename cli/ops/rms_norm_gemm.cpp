// rms_norm_gemm for the tools: its entries, their costs and the fields of its cases.
#include "ops/rms_norm_gemm.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <map>
#include <string>

#include "cli/cases/case_line.h"
#include "cli/cases/draw.h"
#include "cli/ops/ops.h"
#include "cli/ops/projection.h"
#include "cli/ops/rms_norm_gemm.h"

namespace tandem::tools {
namespace {

void check(const Line& line, Case& one) {
  check_segments(line, one, kMostRmsNormGemmSegments);
  if (one.norm == Norm::kNone) one.norm = Norm::kSame;
  for (const std::string& text : one.segments) {
    if (parse_segment(text)->activation == Activation::kNone) continue;
    line.refuse("segments", "must have no activation: " + shown(text));
  }
  std::int64_t rope_width = one.rope_width;
  if (rope_width % 2 != 0) line.refuse("rope_width", "must be even");
  for (const std::string& text : one.segments) {
    const SegmentCase segment = *parse_segment(text);
    if (!segment.rope) continue;
    const auto width = static_cast<std::int64_t>(segment.constants[0]);
    if (rope_width == 0) rope_width = width;
    if (rope_width > width) line.refuse("rope_width", "must fit all heads that rotate");
  }
  constexpr std::array kRopes = {"rows", "length", "positions", "cu_seqlens"};
  if (std::ranges::find(kRopes, one.rope) == kRopes.end()) {
    line.refuse("rope", "must be rows, length, positions or cu_seqlens, got " + shown(one.rope));
  }
}

/// Of random cases: the norm weight's gradient has as many values, and few of them may all be
/// rounded by as much as one can be.
constexpr std::int64_t kFewestNormalized = 64;

std::map<std::string, std::int64_t> draw_axes(Draw& draw) {
  std::map<std::string, std::int64_t> axes = draw_rows(draw);
  axes["d"] = draw.log_in(kFewestNormalized, 200);
  return axes;
}

bool judgeable(const Case& one) {
  return has_rows_to_judge(one) && one.axis("d") >= kFewestNormalized;
}

/// Draws segments and a norm. Rows that are one row would all be rounded alike.
void draw_fields(Draw& draw, Case& one) {
  if (one.strides == Strides::kBroadcast) one.strides = Strides::kPadded;
  const std::int64_t count = draw.in(1, kMostRmsNormGemmSegments);
  std::int64_t narrowest = 256;  // of the heads that rotate
  for (std::int64_t i = 0; i < count; ++i) {
    std::int64_t columns = draw.one_in(2) ? 8 * draw.log_in(2, 20) : draw.in(16, 90);
    std::string text = "none";
    if (draw.one_in(3)) {
      const std::int64_t width = 8 * draw.log_in(1, 32);
      // Columns enough for an error to be one of roundings, by small heads too.
      columns = width * (width < 32 ? draw.in(32 / width, 8) : draw.in(1, width > 64 ? 2 : 4));
      text = fmt::format("heads {}", width);
      if (draw.one_in(2)) text += draw.one_in(2) ? " norm" : " norm_fp32";
      if (draw.one_in(2)) {
        text += " rope";
        narrowest = std::min(narrowest, width);
      }
    }
    if (draw.one_in(4)) text += " fp32";
    if (draw.one_in(3)) text += draw.one_in(2) ? " bias" : " bias_fp32";
    if (i > 0 && draw.one_in(6)) text += " unused";
    one.segments.push_back(fmt::format("{} {}", draw.one_in(15) ? 0 : columns, text));
  }
  one.rope_width = draw.one_in(2) ? narrowest : 2 * draw.in(1, narrowest / 2);
  one.rope = draw.of({"rows", "length", "positions", "cu_seqlens"});
  one.rope_interleaved = draw.one_in(3);
  one.rope_fp32 = draw.one_in(2);
  if (draw.one_in(3)) one.head_eps = draw.of({1e-5, 0.1});
  one.kept = draw.of({Kept::kYes, Kept::kTraining});
  one.fp32_gradients = draw.one_in(3);
  one.accumulate = draw.one_in(3);
  one.norm = draw.of({Norm::kSame, Norm::kFp32});
  one.rstd_given = draw.one_in(3);
  if (!one.rstd_given && draw.one_in(2)) one.eps = draw.of({0.0, 1e-5, 1e-3, 1.0});
}

}  // namespace

CaseSchema rms_norm_gemm_case_schema() {
  return {.op = "rms_norm_gemm",
          .axes = {"M", "d"},
          .optional_axes = {},
          .fields = {"segments", "kept", "gradients", "accumulate", "norm", "eps", "head_eps",
                     "rope", "rope_width", "rope_layout", "rope_tables", "rstd", "rows"},
          .check = check,
          .draw_axes = draw_axes,
          .judgeable = judgeable,
          .draw_fields = draw_fields};
}

std::vector<Operation> rms_norm_gemm_operations() {
  const Operation forward = {.name = "rms_norm_gemm",
                             .direction = "forward",
                             .calls = {&rms_norm_gemm_forward_signature()},
                             .make = make_rms_norm_gemm,
                             .expect = expect_rms_norm_gemm,
                             .flops = product_flops,
                             .shape = segments_shape};
  const Operation backward = {.name = "rms_norm_gemm",
                              .direction = "backward",
                              .calls = {&rms_norm_gemm_backward_signature()},
                              .make = make_rms_norm_gemm_backward,
                              .expect = expect_rms_norm_gemm_backward,
                              // d_out W and d_out^T n.
                              .flops = [](const TensorSet& set) { return 2 * product_flops(set); },
                              .shape = segments_shape};
  Operation both = forward_then_backward(forward, backward);
  both.make = make_rms_norm_gemm_both;
  return {forward, backward, both};
}

}  // namespace tandem::tools
