// projection: its tables, and arguments -> checked problem. Host only.
#include "ops/projection.h"

#include <array>
#include <cmath>
#include <limits>
#include <string>
#include <utility>

#include "ops/call.h"
#include "ops/segments.h"

namespace tandem {
namespace {

using Forward = ProjectionForwardArgs;
using Backward = ProjectionBackwardArgs;
using Segment = ProjectionSegment;
using Gradient = ProjectionSegmentGradient;

constexpr std::array kActivations = {"none",        "silu",     "sigmoid",
                                     "log_sigmoid", "softplus", "l2_normalize"};
constexpr int kWidest = 256;  // head of l2_normalize

template <std::size_t i>
void append_forward_rows(std::vector<Parameter>& table) {
  const auto add = [&](Parameter row) { table.push_back(std::move(row)); };
  add(segment_row<Forward, &Segment::weight, i>("weight#", Role::kInput, "C#,d", Element::kSame));
  add(segment_row<Forward, &Segment::bias, i>("bias#", Role::kInput, "C#", Element::kSameOrFp32));
  add(segment_number<Forward, &Segment::activation, i>("activation#"));
  add(segment_number<Forward, &Segment::divisor, i>("divisor#"));
  add(segment_number<Forward, &Segment::min, i>("min#"));
  add(segment_number<Forward, &Segment::max, i>("max#"));
  add(segment_number<Forward, &Segment::head_width, i>("head_width#"));
  add(segment_row<Forward, &Segment::out, i>("out#", Role::kOutput, "M,C#", Element::kSameOrFp32)
          .made(numbered("weight#", i)));
  add(segment_row<Forward, &Segment::slope, i>("slope#", Role::kOutput, "M,C#",
                                               Element::kSameOrFp32)
          .of_dtype(numbered("out#", i)));
  add(segment_row<Forward, &Segment::inverse_norm, i>("inverse_norm#", Role::kOutput,
                                                      "M,C#/head_width#", Element::kFp32));
}

template <std::size_t i>
void append_backward_rows(std::vector<Parameter>& table) {
  const auto add = [&](Parameter row) { table.push_back(std::move(row)); };
  const char* const d_out = numbered("d_out#", i);
  add(segment_row<Backward, &Gradient::weight, i>("weight#", Role::kInput, "C#,d", Element::kSame));
  add(segment_row<Backward, &Gradient::bias, i>("bias#", Role::kInput, "C#", Element::kSameOrFp32));
  add(segment_row<Backward, &Gradient::d_out, i>("d_out#", Role::kInput, "M,C#",
                                                 Element::kSameOrFp32));
  add(segment_row<Backward, &Gradient::slope, i>("slope#", Role::kInput, "M,C#",
                                                 Element::kSameOrFp32)
          .of_dtype(d_out));
  add(segment_row<Backward, &Gradient::out, i>("out#", Role::kInput, "M,C#", Element::kSameOrFp32)
          .of_dtype(d_out));
  add(segment_row<Backward, &Gradient::inverse_norm, i>("inverse_norm#", Role::kInput, "M,H#",
                                                        Element::kFp32));
  add(segment_gradient<Backward, &Gradient::d_weight, i>("d_weight#", "weight#", false));
  add(segment_gradient<Backward, &Gradient::d_bias, i>("d_bias#", "bias#", true));
}

template <std::size_t... segments>
std::vector<Parameter> forward_table(std::index_sequence<segments...>) {
  std::vector<Parameter> table = {input<&Forward::x>("x", "M,d", Element::kMatrix)};
  (append_forward_rows<segments>(table), ...);
  return table;
}

template <std::size_t... segments>
std::vector<Parameter> backward_table(std::index_sequence<segments...>) {
  std::vector<Parameter> table = {input<&Backward::x>("x", "M,d", Element::kMatrix),
                                  gradient<&Backward::dx>("dx", "x"),
                                  flag<&Backward::accumulate>("accumulate")};
  (append_backward_rows<segments>(table), ...);
  return table;
}

using Segments = std::make_index_sequence<kMostProjectionSegments>;

/// What the tables do not say of a segment, in words that name it.
class SegmentCheck {
 public:
  SegmentCheck(const Signature& signature, std::size_t segment)
      : op_(signature.name()), number_(std::to_string(segment)) {}

  const std::string& number() const { return number_; }

  [[noreturn]] void refuse(const std::string& name, const std::string& text) const {
    tandem::refuse(op_, name + number_ + " " + text);
  }

  double finite(const char* name, double value) const {
    if (!std::isfinite(value)) refuse(name, "must be finite, got " + std::to_string(value));
    return value;
  }

  /// Refuses what another activation than the segment's has.
  void only_of(const char* name, bool given, bool fits, const char* activations,
               Activation activation) const {
    if (!given || fits) return;
    refuse(name, std::string("is of ") + activations + ", got activation" + number_ + " = " +
                     kActivations[static_cast<std::size_t>(activation)]);
  }

  void head_width(std::int64_t width, std::int64_t columns) const {
    if (width < 8 || width > kWidest || width % 8 != 0) {
      refuse("head_width", "must be a multiple of 8 in [8,256], got " + std::to_string(width));
    }
    if (columns % width != 0) {
      refuse("weight", "must have rows for whole heads of " + std::to_string(width) + ", got " +
                           std::to_string(columns));
    }
  }

 private:
  const char* op_;
  std::string number_;
};

/// Checks the constants of a segment's activation, and returns the segment with them alone.
ProjectionForwardSegment activation_of(const SegmentCheck& check, const Segment& segment) {
  ProjectionForwardSegment made;
  const Activation activation = made.activation = segment.activation;
  const auto code = static_cast<int>(activation);
  if (code < 0 || code >= std::ssize(kActivations)) {
    check.refuse("activation",
                 "must be 0 (none), 1 (silu), 2 (sigmoid), 3 (log_sigmoid), "
                 "4 (softplus) or 5 (l2_normalize), got " +
                     std::to_string(code));
  }
  const auto constant = [&](const char* name, const std::optional<double>& value, double otherwise,
                            Activation of) {
    if (value) check.finite(name, *value);
    check.only_of(name, value.has_value(), activation == of,
                  kActivations[static_cast<std::size_t>(of)], activation);
    return value.value_or(otherwise);
  };
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  made.divisor = constant("divisor", segment.divisor,
                          activation == Activation::kLogSigmoid ? 16 : 1, Activation::kLogSigmoid);
  if (made.divisor <= 0) {
    check.refuse("divisor", "must be positive, got " + std::to_string(made.divisor));
  }
  made.min = constant("min", segment.min, -kInfinity, Activation::kSoftplus);
  made.max = constant("max", segment.max, kInfinity, Activation::kSoftplus);
  if (made.min > made.max) {
    check.refuse("min", "must not be more than max, got " + std::to_string(made.min) + " and " +
                            std::to_string(made.max));
  }
  const bool normalizes = activation == Activation::kL2Normalize;
  if (segment.head_width || normalizes) {
    check.head_width(segment.head_width.value_or(0),
                     segment.weight.shape.rank() == 2 ? segment.weight.shape[0] : 0);
  }
  check.only_of("head_width", segment.head_width.has_value(), normalizes, "l2_normalize",
                activation);
  made.head_width = static_cast<int>(segment.head_width.value_or(0));
  check.only_of("inverse_norm", segment.inverse_norm.has_value(), normalizes, "l2_normalize",
                activation);
  check.only_of("slope", segment.slope.has_value(), !normalizes && activation != Activation::kNone,
                "silu, sigmoid, log_sigmoid and softplus", activation);
  return made;
}

/// Finds out what the forward kept of a segment, and the width of its heads.
ProjectionBackwardSegment kept_of(const SegmentCheck& check, const Gradient& segment) {
  ProjectionBackwardSegment made;
  if (segment.inverse_norm && !segment.out) {
    check.refuse("inverse_norm", "needs out" + check.number());
  }
  if (segment.inverse_norm && segment.slope) {
    check.refuse("slope", "must not be given beside inverse_norm" + check.number() +
                              ", which is of l2_normalize");
  }
  if (segment.slope) made.kept = ProjectionKept::kSlope;
  if (!segment.inverse_norm) return made;
  made.kept = ProjectionKept::kNormalized;
  if (segment.weight.shape.rank() != 2 || segment.inverse_norm->shape.rank() != 2) return made;
  const std::int64_t columns = segment.weight.shape[0], heads = segment.inverse_norm->shape[1];
  const std::int64_t width = heads > 0 ? columns / heads : 0;
  const bool fits = width >= 8 && width <= kWidest && width % 8 == 0 && width * heads == columns;
  if (!fits && (heads != 0 || columns != 0)) {
    check.refuse("inverse_norm",
                 "must have a column per head of a multiple of 8 in [8,256] columns, got " +
                     std::to_string(heads) + " for " + std::to_string(columns));
  }
  made.head_width = static_cast<int>(width);
  return made;
}

}  // namespace

const Signature& projection_forward_signature() {
  static const Signature signature =
      make_signature<Forward>("projection_forward", forward_table(Segments()),
                              {cpu::projection_forward, TANDEM_CUDA_ENTRY(projection_forward),
                               TANDEM_CUDA_ENTRY(projection_forward_workspace_bytes)});
  return signature;
}

const Signature& projection_backward_signature() {
  static const Signature signature =
      make_signature<Backward>("projection_backward", backward_table(Segments()),
                               {cpu::projection_backward, TANDEM_CUDA_ENTRY(projection_backward),
                                TANDEM_CUDA_ENTRY(projection_backward_workspace_bytes)});
  return signature;
}

ProjectionForwardProblem make_problem(const ProjectionForwardArgs& args) {
  const Signature& signature = projection_forward_signature();
  check_segments(signature, args, kMostProjectionSegments);
  ProjectionForwardProblem problem;
  for (std::size_t i = 0; i < args.segments.size(); ++i) {
    problem.segments[i] = activation_of(SegmentCheck(signature, i), args.segments[i]);
  }
  signature.check(&args);
  set_sizes(problem, args);
  for (std::size_t i = 0; i < args.segments.size(); ++i) {
    const Segment& from = args.segments[i];
    ProjectionForwardSegment& to = problem.segments[i];
    set_product(to, from);
    to.slope = matrix_tensor(from.slope);
    to.inverse_norm = matrix_tensor(from.inverse_norm);
  }
  return problem;
}

ProjectionBackwardProblem make_problem(const ProjectionBackwardArgs& args) {
  const Signature& signature = projection_backward_signature();
  check_segments(signature, args, kMostProjectionSegments);
  ProjectionBackwardProblem problem;
  for (std::size_t i = 0; i < args.segments.size(); ++i) {
    problem.segments[i] = kept_of(SegmentCheck(signature, i), args.segments[i]);
  }
  signature.check(&args);
  set_sizes(problem, args);
  for (std::size_t i = 0; i < args.segments.size(); ++i) {
    const Gradient& from = args.segments[i];
    ProjectionBackwardSegment& to = problem.segments[i];
    set_product(to, from);
    to.slope = matrix_tensor(from.slope);
    if (from.inverse_norm) to.out = matrix_tensor(from.out);
    to.inverse_norm = matrix_tensor(from.inverse_norm);
  }
  problem.dx = matrix_tensor(args.dx);
  problem.accumulate = args.accumulate;
  return problem;
}

void projection_forward(const ProjectionForwardArgs& args, const Context& context) {
  run(projection_forward_signature(), &args, context);
}

std::size_t projection_forward_workspace_bytes(const ProjectionForwardArgs& args,
                                               const DeviceProperties& device,
                                               bool batch_invariant) {
  return workspace_bytes(projection_forward_signature(), &args, device, batch_invariant);
}

void projection_backward(const ProjectionBackwardArgs& args, const Context& context) {
  run(projection_backward_signature(), &args, context);
}

std::size_t projection_backward_workspace_bytes(const ProjectionBackwardArgs& args,
                                                const DeviceProperties& device,
                                                bool batch_invariant) {
  return workspace_bytes(projection_backward_signature(), &args, device, batch_invariant);
}

}  // namespace tandem
