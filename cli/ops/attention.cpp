// attention for the tools: its entries and their costs.
#include "cli/ops/attention.h"

#include <fmt/format.h>

#include <algorithm>

#include "cli/calls/arguments.h"
#include "cli/calls/judge.h"
#include "cli/cases/case_line.h"
#include "cli/cases/draw.h"
#include "cli/cases/random_case.h"
#include "cli/ops/ops.h"
#include "reference/attention.h"

namespace tandem::tools {
namespace {

/// A pair is K multiply-adds for its score, and V for its value.
double forward_flops(const TensorSet& set) {
  const auto p =
      make_problem(host_arguments<AttentionForwardArgs>(attention_forward_signature(), set));
  return pair_count(p) * p.H * 2 * (p.K + p.V);
}

/// A pair's score, dq and dk are K each, its weight's gradient and dv are V.
double backward_flops(const TensorSet& set) {
  const auto problem =
      make_problem(host_arguments<AttentionBackwardArgs>(attention_backward_signature(), set));
  const AttentionForwardProblem& p = problem.forward;
  return pair_count(p) * p.H * 2 * (3.0 * p.K + 2.0 * p.V);
}

std::string shape_of(const TensorSet& set) {
  const Dims q = set.get("q").shape, v = set.get("v").shape;
  const std::string heads =
      q[2] == v[2] ? fmt::format("H{}", q[2]) : fmt::format("H{}/{}", q[2], v[2]);
  const std::string tokens =
      q[1] == v[1] ? fmt::format("T{}", q[1]) : fmt::format("T{}/{}", q[1], v[1]);
  return fmt::format("B{} {} {} K{} V{}", q[0], tokens, heads, q[3], v[3]);
}

void check_lengths(const Line& line, const Case& one) {
  if (one.cu_seqlens_k) {
    if (!one.cu_seqlens) line.refuse("cu_seqlens_k", "needs cu_seqlens, those of queries");
    const auto& offsets = *one.cu_seqlens_k;
    if (offsets.size() != one.cu_seqlens->size()) {
      line.refuse("cu_seqlens_k", "must be as many as cu_seqlens");
    }
    if (!std::ranges::is_sorted(offsets) || offsets.back() > one.axis("TK")) {
      line.refuse("cu_seqlens_k", "must not decrease or pass TK");
    }
  } else if (one.cu_seqlens && one.cu_seqlens->back() > one.axis("TK")) {
    line.refuse("cu_seqlens", "must not pass TK, without cu_seqlens_k");
  }
  if (!one.lengths_k) return;
  if (one.cu_seqlens) line.refuse("lengths_k", "cannot be given beside cu_seqlens");
  if (std::ssize(*one.lengths_k) != one.axis("B")) line.refuse("lengths_k", "must be B lengths");
  for (const std::int32_t length : *one.lengths_k) {
    if (length > one.axis("TK")) line.refuse("lengths_k", "must not pass TK");
  }
}

/// Sets the axes that a case left out.
void complete(const Line& line, Case& one) {
  one.axes.emplace("TK", one.axis("T"));
  one.axes.emplace("HKV", one.axis("H"));
  one.axes.emplace("V", one.axis("K"));
  if (one.axis("H") % one.axis("HKV") != 0) line.refuse("axes.HKV", "must divide H");
  check_lengths(line, one);
  if (one.causal && one.window_right.value_or(0) != 0) {
    line.refuse("window_right", "must be 0 beside causal");
  }
  check_attention_values(line, one);
}

/// Widths are of 1 to 80, or multiples of 8 up to 256, which the GPU takes.
std::map<std::string, std::int64_t> draw_axes(Draw& draw) {
  const bool native = draw.one_in(2);
  const auto width = [&] { return native ? 8 * draw.log_in(1, 32) : draw.in(1, 80); };
  const auto tokens = [&] { return draw.one_in(10) ? draw.in(0, 1) : draw.log_in(1, 700); };
  const std::int64_t HKV = draw.log_in(1, 4), T = tokens();
  return {{"B", draw.in(0, 3)},
          {"T", T},
          {"TK", draw.one_in(2) ? T : tokens()},
          {"HKV", HKV},
          {"H", HKV * draw.log_in(1, 4)},
          {"K", width()},
          {"V", width()}};
}

void draw_fields(Draw& draw, Case& one) {
  const std::int64_t T = one.axis("T"), TK = one.axis("TK");
  if (draw.one_in(4)) one.scale = draw.of({0.5, 0.05, -0.25});
  one.causal = draw.one_in(3);
  if (draw.one_in(4)) one.window_left = draw.in(0, TK + 10);
  if (!one.causal && draw.one_in(4)) one.window_right = draw.in(0, TK + 10);
  one.log_sum_exp = draw.one_in(2);
  if (draw.one_in(3)) {
    one.axes["B"] = 1;
    const std::int64_t N = draw.in(0, 5);
    one.cu_seqlens = draw_offsets(draw, T, N);
    one.cu_seqlens_k = draw_offsets(draw, TK, N);
  } else if (draw.one_in(3)) {
    one.lengths_k.emplace();
    for (std::int64_t b = 0; b < one.axis("B"); ++b) {
      one.lengths_k->push_back(static_cast<std::int32_t>(draw.in(0, TK)));
    }
  }
}

/// Gradients need more results than outputs: a query's dq all carries the error of one rounded
/// output.
bool judgeable(const Case& one) {
  const std::int64_t rows = token_count(one) * one.axis("H");
  return rows == 0 || (rows >= 64 && one.axis("K") >= 8 && one.axis("V") >= 8);
}

}  // namespace

double pair_count(const AttentionSizes& sizes) {
  double pairs = 0;
  for (std::int64_t n = 0; n < sizes.N; ++n) {
    const reference::AttentionSpan span = reference::attention_span(sizes, n);
    const std::int64_t keys = span.keys(), shift = keys - span.queries();
    const auto [left, right] = sizes.mask;
    for (std::int64_t i = 0; i < span.queries(); ++i) {
      const std::int64_t place = i + shift;
      const bool all_left = left == AttentionMask::kUnlimited;
      const bool all_right = right == AttentionMask::kUnlimited;
      const std::int64_t first = all_left ? 0 : std::max<std::int64_t>(place - left, 0);
      const std::int64_t end = all_right ? keys : std::min(place + right + 1, keys);
      pairs += static_cast<double>(std::max<std::int64_t>(end - first, 0));
    }
  }
  return pairs;
}

void check_attention_values(const Line& line, const Case& one) {
  if (std::ranges::find(kAttentionValues, one.values) == kAttentionValues.end()) {
    line.refuse("values", fmt::format("must be one of {}, got {}",
                                      fmt::join(kAttentionValues, ", "), one.values));
  }
  if (one.values != "infinite") return;
  if (one.axis("K") < 2) line.refuse("values", "infinite needs K >= 2");
  if (one.directions != std::vector<std::string>{"forward"}) {
    line.refuse("values", "infinite is for forwards");
  }
}

double attention_limit(DType dtype) {
  switch (dtype) {
    case DType::kBFloat16: return 2.5e-3;
    case DType::kFloat16: return 3e-4;
    default: return error_limit(dtype);
  }
}

double attention_gradient_limit(DType dtype) {
  switch (dtype) {
    case DType::kBFloat16: return 4e-3;
    case DType::kFloat16: return 6e-4;
    default: return error_limit(dtype);
  }
}

std::vector<std::int64_t> spread(std::int64_t count, std::int64_t wanted) {
  std::vector<std::int64_t> indices;
  for (std::int64_t i = 0; i < std::min(count, wanted); ++i) {
    indices.push_back(count <= wanted ? i
                                      : i * (count - 1) / std::max<std::int64_t>(wanted - 1, 1));
  }
  return indices;
}

std::vector<std::pair<std::int64_t, std::int64_t>> tokens_outside(const AttentionSizes& sizes,
                                                                  bool of_keys) {
  const std::int64_t T = of_keys ? sizes.TK : sizes.TQ;
  std::vector<char> inside(sizes.B * T);
  for (std::int64_t n = 0; n < sizes.N; ++n) {
    const reference::AttentionSpan span = reference::attention_span(sizes, n);
    const std::int64_t begin = of_keys ? span.k_begin : span.q_begin;
    const std::int64_t end = of_keys ? span.k_end : span.q_end;
    for (std::int64_t t = begin; t < end; ++t) inside[span.b * T + t] = 1;
  }
  std::vector<std::pair<std::int64_t, std::int64_t>> outside;
  for (std::int64_t i = 0; i < std::ssize(inside); ++i) {
    if (!inside[i]) outside.emplace_back(i / T, i % T);
  }
  return outside;
}

CaseSchema attention_case_schema() {
  return {.op = "attention",
          .axes = {"B", "T", "H", "K"},
          .optional_axes = {"TK", "HKV", "V"},
          .fields = {"scale", "causal", "window_left", "window_right", "cu_seqlens", "lengths",
                     "cu_seqlens_k", "lengths_k", "log_sum_exp", "values"},
          .check = complete,
          .draw_axes = draw_axes,
          .judgeable = judgeable,
          .draw_fields = draw_fields};
}

std::vector<Operation> attention_operations() {
  const Operation forward = {.name = "attention",
                             .direction = "forward",
                             .calls = {&attention_forward_signature()},
                             .make = make_attention,
                             .expect = expect_attention,
                             .flops = forward_flops,
                             .shape = shape_of};
  const Operation backward = {.name = "attention",
                              .direction = "backward",
                              .calls = {&attention_backward_signature()},
                              .make = make_attention_backward,
                              .expect = expect_attention_backward,
                              .flops = backward_flops,
                              .shape = shape_of};
  Operation both = forward_then_backward(forward, backward);
  both.make = make_attention_both;
  return {forward, backward, both};
}

}  // namespace tandem::tools
