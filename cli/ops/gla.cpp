// gla for the tools: its entries and their costs.
#include "cli/ops/gla.h"

#include <fmt/format.h>

#include <algorithm>

#include "cli/calls/arguments.h"
#include "cli/cases/case_line.h"
#include "cli/cases/draw.h"
#include "cli/ops/ops.h"

namespace tandem::tools {
namespace {

constexpr double kChunk = 64;  // of the chunked algorithm that flops are counted of

/// Number of tokens of all sequences together.
double token_count(const GlaRecurrence& recurrence) {
  double tokens = 0;
  for (std::int64_t n = 0; n < recurrence.N; ++n) {
    const TokenRange range = tokens_of(recurrence, n);
    tokens += static_cast<double>(range.end - range.begin);
  }
  return tokens;
}

/// Per chunk C and head, Q K^T is C*C*K multiply-adds, Q S and K^T V are C*K*V each, (Q K^T) V is
/// C*C*V; counted per token, so a partial chunk counts partly.
double forward_flops(const TensorSet& set) {
  const auto p = make_problem(host_arguments<GlaForwardArgs>(gla_forward_signature(), set));
  const double K = p.K, V = p.V;
  return token_count(p) * p.H * 2 * (kChunk * K + 2 * K * V + kChunk * V);
}

/// Per token and head as in the forward: Q K^T, W K and W^T Q are C*K multiply-adds each, dO V^T
/// and A^T dO are C*V, and dO S^T, V dS^T, K dS, Q^T dO and the states' K^T V are K*V.
double backward_flops(const TensorSet& set) {
  const GlaBackwardProblem problem =
      make_problem(host_arguments<GlaBackwardArgs>(gla_backward_signature(), set));
  const GlaForwardProblem& p = problem.forward;
  const double K = p.K, V = p.V;
  return token_count(p) * p.H * 2 * (3 * kChunk * K + 2 * kChunk * V + 5 * K * V);
}

/// A token adds k v^T, or q d_o^T.
template <class Args>
double state_flops(const Signature& signature, const TensorSet& set) {
  const auto p = make_problem(host_arguments<Args>(signature, set));
  return token_count(p) * p.H * 2 * p.K * p.V;
}

/// q^T S and k v^T are K*V multiply-adds each.
double step_flops(const TensorSet& set) {
  return 4 * static_cast<double>(set.get("state").shape.product());
}

std::string shape_of(const TensorSet& set, const char* keys_name, const char* values_name) {
  const Dims keys = set.get(keys_name).shape, values = set.get(values_name).shape;
  const std::string heads = keys[2] == values[2] ? fmt::format("H{}", values[2])
                                                 : fmt::format("H{}/{}", values[2], keys[2]);
  return fmt::format("B{} T{} {} K{} V{}", keys[0], keys[1], heads, keys[3], values[3]);
}

std::string step_shape(const TensorSet& set) {
  const Dims q = set.get("q").shape;
  const NamedTensor& state = set.get("state");
  const std::int64_t H = state.shape[1], HQ = q[1];
  const std::string heads = H == HQ ? fmt::format("H{}", H) : fmt::format("H{}/{}", H, HQ);
  return fmt::format("B{} {} K{} V{} state {}", q[0], heads, q[2], state.shape[3],
                     to_string(state.dtype));
}

/// Sets the axes that a case left out.
void complete(const Line& line, Case& one) {
  one.axes.emplace("V", one.axis("K"));
  one.axes.emplace("HQ", one.axis("H"));
  if (one.axis("H") % one.axis("HQ") != 0) line.refuse("axes.HQ", "must divide H");
  if (one.has_direction("step") && one.axis("T") != 1) {
    line.refuse("axes.T", fmt::format("a step is of one token, got {}", one.axis("T")));
  }
  if (one.cu_seqlens && one.has_direction("step")) line.refuse("cu_seqlens", "a step has none");
  if (one.cu_seqlens && one.saved_states) line.refuse("saved_states", "cannot go with cu_seqlens");
}

/// Widths are of 1 to 80, or multiples of 8 up to 256, which the GPU takes at full speed.
std::map<std::string, std::int64_t> draw_axes(Draw& draw) {
  const bool native = draw.one_in(2);
  const auto width = [&] { return native ? 8 * draw.log_in(1, 32) : draw.in(1, 80); };
  const std::int64_t HQ = draw.log_in(1, 8);
  return {{"B", draw.in(0, 3)}, {"T", draw.one_in(10) ? draw.in(0, 1) : draw.log_in(1, 2048)},
          {"HQ", HQ},           {"H", HQ * draw.log_in(1, 8)},
          {"K", width()},       {"V", width()}};
}

/// Gradients need more results than outputs: a token's dq and dk all carry the error of one rounded
/// weight, and its d_log_decay that of one head's products.
bool judgeable(const Case& one) {
  const std::int64_t tokens = token_count(one), heads = tokens * one.axis("H");
  const std::int64_t K = one.axis("K"), V = one.axis("V");
  const bool states = one.has_direction("state") || one.has_direction("state_backward");
  if (states) return one.axis("H") * K * V >= 64;
  if (heads == 0) return true;
  const bool outputs = heads >= 16 && heads * V >= 256;
  if (one.has_direction("forward") || one.has_direction("step")) return outputs;
  return outputs && heads >= 64 && K * V >= 64 && tokens * one.axis("HQ") * K >= 256;
}

}  // namespace

TokenRange tokens_of(const GlaRecurrence& recurrence, std::int64_t n) {
  if (!recurrence.cu_seqlens) return {0, recurrence.T};
  const auto boundary = [&](std::int64_t i) {
    return std::clamp<std::int64_t>(recurrence.cu_seqlens[i], 0, recurrence.T);
  };
  return {boundary(n), std::max(boundary(n), boundary(n + 1))};
}

std::vector<std::int64_t> heads_to_check(const GlaRecurrence& recurrence, bool sampled) {
  const std::int64_t all = recurrence.N * recurrence.H;
  const double average = token_count(recurrence) / std::max<double>(recurrence.N, 1);
  const double cost = average * recurrence.K * recurrence.V;
  const auto affordable = static_cast<std::int64_t>(4e8 / (cost + 1));
  const std::int64_t wanted = sampled ? std::min(all, std::max<std::int64_t>(4, affordable)) : all;
  std::vector<std::int64_t> heads;
  for (std::int64_t i = 0; i < wanted; ++i) {
    heads.push_back(wanted == all ? i : i * (all - 1) / (wanted - 1));
  }
  return heads;
}

CaseSchema gla_case_schema() {
  return {.op = "gla",
          .axes = {"B", "T", "H", "K"},
          .optional_axes = {"HQ", "V"},
          .fields = {"state_dtype", "saved_states", "scale"},
          .decay_kinds = {{"none", DecayKind::kNone},
                          {"constant", DecayKind::kConstant},
                          {"per_token", DecayKind::kPerToken}},
          .check = complete,
          .draw_axes = draw_axes,
          .judgeable = judgeable};
}

std::vector<Operation> gla_operations() {
  const auto shape = [](const TensorSet& set) { return shape_of(set, "q", "v"); };
  const Operation forward = {.name = "gla",
                             .direction = "forward",
                             .calls = {&gla_forward_signature()},
                             .make = make_gla,
                             .expect = expect_gla,
                             .flops = forward_flops,
                             .shape = shape};
  const Operation backward = {.name = "gla",
                              .direction = "backward",
                              .calls = {&gla_backward_signature()},
                              .make = make_gla_backward,
                              .expect = expect_gla_backward,
                              .flops = backward_flops,
                              .shape = shape};
  Operation second = backward;
  second.make = make_gla_second;
  const Operation state = {.name = "gla",
                           .direction = "state",
                           .calls = {&gla_state_forward_signature()},
                           .make = make_gla_state,
                           .expect = expect_gla_state,
                           .flops =
                               [](const TensorSet& set) {
                                 return state_flops<GlaStateForwardArgs>(
                                     gla_state_forward_signature(), set);
                               },
                           .shape = [](const TensorSet& set) { return shape_of(set, "k", "v"); }};
  const Operation state_backward = {
      .name = "gla",
      .direction = "state_backward",
      .calls = {&gla_state_backward_signature()},
      .make = make_gla_state_backward,
      .expect = expect_gla_state_backward,
      .flops =
          [](const TensorSet& set) {
            return state_flops<GlaStateBackwardArgs>(gla_state_backward_signature(), set);
          },
      .shape = [](const TensorSet& set) { return shape_of(set, "q", "d_o"); }};
  const Operation step = {.name = "gla",
                          .direction = "step",
                          .calls = {&gla_step_signature()},
                          .make = make_gla_step,
                          .expect = expect_gla_step,
                          .flops = step_flops,
                          .shape = step_shape};
  return {forward, backward, forward_then_backward(forward, second), state, state_backward, step};
}

}  // namespace tandem::tools
