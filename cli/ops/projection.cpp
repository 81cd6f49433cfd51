// projection for the tools: its entries, their costs and the fields of its cases.
#include "ops/projection.h"

#include <fmt/format.h>

#include <algorithm>
#include <sstream>

#include "cli/cases/case_line.h"
#include "cli/cases/draw.h"
#include "cli/ops/ops.h"
#include "cli/ops/projection.h"

namespace tandem::tools {
namespace {

struct Word {
  const char* text;
  Activation activation;
  std::size_t least, most;  // constants
};
constexpr Word kWords[] = {
    {"none", Activation::kNone, 0, 0},         {"silu", Activation::kSilu, 0, 0},
    {"sigmoid", Activation::kSigmoid, 0, 0},   {"log_sigmoid", Activation::kLogSigmoid, 0, 1},
    {"softplus", Activation::kSoftplus, 0, 2}, {"l2_normalize", Activation::kL2Normalize, 1, 1},
    {"heads", Activation::kNone, 1, 1}};
constexpr std::int64_t kActivations = std::ssize(kWords) - 1;  // without heads

void check(const Line& line, Case& one) {
  check_segments(line, one, kMostProjectionSegments);
  for (const std::string& text : one.segments) {
    if (parse_segment(text)->has_heads()) {
      line.refuse("segments", "must have no heads without a norm: " + shown(text));
    }
  }
}

/// Of random cases.
constexpr std::int64_t kFewestRows = 40;

/// Draws segments whose columns are enough for an error to be one of roundings; rows that are one
/// row would not be. No clamps: their slope jumps, and of 10^4 elements one may lie so close to the
/// edge that its sum falls on the other side.
void draw_segments(Draw& draw, Case& one) {
  if (one.strides == Strides::kBroadcast) one.strides = Strides::kPadded;
  const std::int64_t count = draw.in(1, kMostProjectionSegments);
  for (std::int64_t i = 0; i < count; ++i) {
    const Word& word = kWords[draw.in(0, kActivations - 1)];
    std::int64_t columns = draw.one_in(2) ? 8 * draw.log_in(2, 20) : draw.in(16, 90);
    std::string text = word.text;
    if (word.activation == Activation::kL2Normalize) {
      const std::int64_t width = 8 * draw.log_in(1, 32);
      columns = width * draw.in(1, 256 / width < 4 ? 2 : 4);
      text += fmt::format(" {}", width);
    }
    if (draw.one_in(4)) text += " fp32";
    if (draw.one_in(3)) text += draw.one_in(2) ? " bias" : " bias_fp32";
    if (count > 1 && i > 0 && draw.one_in(6)) text += " unused";
    one.segments.push_back(fmt::format("{} {}", draw.one_in(15) ? 0 : columns, text));
  }
  one.kept = draw.of({Kept::kYes, Kept::kTraining});
  one.fp32_gradients = draw.one_in(3);
  one.accumulate = draw.one_in(3);
}

}  // namespace

double product_flops(const TensorSet& set) {
  const Dims x = set.get("x").shape;
  double columns = 0;
  for (std::size_t i = 0; set.find(segment_name("weight", i)); ++i) {
    columns += static_cast<double>(set.get(segment_name("weight", i)).shape[0]);
  }
  return 2.0 * static_cast<double>(x.product()) * columns;
}

std::string segments_shape(const TensorSet& set) {
  const Dims x = set.get("x").shape;
  std::string text = fmt::format("M{} d{} N", x[0], x[1]);
  for (std::size_t i = 0; set.find(segment_name("weight", i)); ++i) {
    text += fmt::format("{}{}", i ? "+" : "", set.get(segment_name("weight", i)).shape[0]);
  }
  return text;
}

void check_segments(const Line& line, const Case& one, int most) {
  if (one.segments.empty() || std::ssize(one.segments) > most) {
    line.refuse("segments", fmt::format("must be 1 to {}", most));
  }
  for (const std::string& text : one.segments) {
    const std::optional<SegmentCase> segment = parse_segment(text);
    if (!segment) line.refuse("segments", "has no such segment: " + shown(text));
    const bool heads = segment->normalizes() || segment->has_heads();
    if (heads && (segment->constants[0] < 1 ||
                  segment->heads() * segment->constants[0] != segment->columns)) {
      line.refuse("segments", "must have whole heads: " + shown(text));
    }
  }
  if (one.kept == Kept::kNo) {
    line.refuse("kept", "must be yes or training: its backward needs what its forward keeps");
  }
}

std::map<std::string, std::int64_t> draw_rows(Draw& draw) {
  return {{"M", draw.one_in(10) ? 0 : draw.log_in(kFewestRows, 400)}, {"d", draw.log_in(8, 200)}};
}

bool has_rows_to_judge(const Case& one) {
  return one.axis("M") == 0 || one.axis("M") >= kFewestRows;
}

std::string segment_name(const char* stem, std::size_t segment) {
  return stem + std::to_string(segment);
}

std::optional<SegmentCase> parse_segment(const std::string& text) {
  std::istringstream words(text);
  SegmentCase segment;
  std::string word;
  if (!(words >> segment.columns >> word) || segment.columns < 0) return std::nullopt;
  const Word* kind = std::ranges::find(kWords, word, &Word::text);
  if (kind == std::end(kWords)) return std::nullopt;
  segment.activation = kind->activation;
  while (words >> word) {
    char* end = nullptr;
    const double constant = std::strtod(word.c_str(), &end);
    if (*end == '\0') {
      segment.constants.push_back(constant);
    } else if (bool* flag = word == "fp32"        ? &segment.fp32
                            : word == "bias"      ? &segment.bias
                            : word == "bias_fp32" ? &segment.bias_fp32
                            : word == "unused"    ? &segment.unused
                            : word == "norm"      ? &segment.norm
                            : word == "norm_fp32" ? &segment.norm_fp32
                            : word == "rope"      ? &segment.rope
                                                  : nullptr) {
      *flag = true;
    } else {
      return std::nullopt;
    }
  }
  const std::size_t constants = segment.constants.size();
  if (constants < kind->least || constants > kind->most) return std::nullopt;
  if ((segment.has_head_norm() || segment.rope) && !segment.has_heads()) return std::nullopt;
  return segment;
}

CaseSchema projection_case_schema() {
  return {.op = "projection",
          .axes = {"M", "d"},
          .optional_axes = {},
          .fields = {"segments", "around", "kept", "gradients", "accumulate"},
          .check = check,
          .draw_axes = draw_rows,
          .judgeable = has_rows_to_judge,
          .draw_fields = draw_segments};
}

std::vector<Operation> projection_operations() {
  const Operation forward = {.name = "projection",
                             .direction = "forward",
                             .calls = {&projection_forward_signature()},
                             .make = make_projection,
                             .expect = expect_projection,
                             .flops = product_flops,
                             .shape = segments_shape};
  const Operation backward = {.name = "projection",
                              .direction = "backward",
                              .calls = {&projection_backward_signature()},
                              .make = make_projection_backward,
                              .expect = expect_projection_backward,
                              // dz W and dz^T x.
                              .flops = [](const TensorSet& set) { return 2 * product_flops(set); },
                              .shape = segments_shape};
  Operation both = forward_then_backward(forward, backward);
  both.make = make_projection_both;
  return {forward, backward, both};
}

}  // namespace tandem::tools
