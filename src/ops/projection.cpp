// projection: its tables, and arguments -> checked problem. Host only.
#include "ops/projection.h"

#include <array>
#include <cmath>
#include <limits>
#include <mutex>
#include <set>
#include <string>
#include <utility>

#include "ops/call.h"
#include "ops/views.h"

namespace tandem {
namespace {

using Forward = ProjectionForwardArgs;
using Backward = ProjectionBackwardArgs;
using Segment = ProjectionSegment;
using Gradient = ProjectionSegmentGradient;

constexpr std::array kActivations = {"none",        "silu",     "sigmoid",
                                     "log_sigmoid", "softplus", "l2_normalize"};
constexpr int kWidest = 256;  // head of l2_normalize

// Rows of a segment. They carry its number, and take a member of its struct where the call has so
// many segments.

/// The text, with a segment's number for each '#'. It is kept as long as the program runs.
const char* numbered(const std::string& text, std::size_t segment) {
  static std::mutex mutex;  // the tables of both calls may be made at one time
  static std::set<std::string> kept;
  std::string made;
  for (const char c : text) made += c == '#' ? std::to_string(segment) : std::string(1, c);
  const std::lock_guard lock(mutex);
  return kept.insert(std::move(made)).first->c_str();
}

template <class Args, std::size_t segment>
auto* segment_of(const void* args) {
  const auto& segments = static_cast<const Args*>(args)->segments;
  return segment < segments.size() ? &segments[segment] : nullptr;
}

template <class Args, std::size_t segment>
auto& make_segment(void* args) {
  auto& segments = static_cast<Args*>(args)->segments;
  if (segments.size() <= segment) segments.resize(segment + 1);
  return segments[segment];
}

template <class Args, auto member, std::size_t segment>
Parameter tensor_row(const char* name, Role role) {
  using Value = typename detail::MemberOf<decltype(member)>::Value;
  constexpr bool kOptional = !std::is_same_v<Value, TensorView>;
  Parameter row{numbered(name, segment), role, kOptional || segment > 0};
  row.view = [](const void* args) -> const TensorView* {
    const auto* one = segment_of<Args, segment>(args);
    if (one == nullptr) return nullptr;
    if constexpr (kOptional) {
      return one->*member ? &*(one->*member) : nullptr;
    } else {
      return &(one->*member);
    }
  };
  row.set_view = [](void* args, const TensorView& view) {
    make_segment<Args, segment>(args).*member = view;
  };
  if constexpr (kOptional) {
    row.unset = [](void* args) { (make_segment<Args, segment>(args).*member).reset(); };
  }
  return row;
}

template <class Args, auto member, std::size_t segment>
Parameter tensor_row(const char* name, Role role, const char* axes, Element element) {
  Parameter row = tensor_row<Args, member, segment>(name, role);
  row.axes_text = numbered(axes, segment);
  row.element = element;
  return row;
}

template <class Args, auto member, std::size_t segment>
Parameter gradient_row(const char* name, const char* source, bool needs_source) {
  Parameter row = tensor_row<Args, member, segment>(name, Role::kGradient);
  row.source = numbered(source, segment);
  row.needs_source = needs_source;
  return std::move(row).also_fp32();
}

template <auto member, std::size_t segment>
Parameter number_row(const char* name) {
  using Value = typename detail::MemberOf<decltype(member)>::Value;
  constexpr bool kReal = std::is_same_v<Value, std::optional<double>>;
  Parameter row{numbered(name, segment)};
  row.optional = row.number = true;
  row.whole = !kReal;
  row.value = [](const void* args) -> std::optional<double> {
    const auto* one = segment_of<Forward, segment>(args);
    if (one == nullptr) return std::nullopt;
    if constexpr (std::is_same_v<Value, Activation>) {
      return static_cast<double>(one->*member);
    } else {
      return one->*member ? std::optional(static_cast<double>(*(one->*member))) : std::nullopt;
    }
  };
  row.set_value = [](void* args, double value) {
    auto& to = make_segment<Forward, segment>(args).*member;
    if constexpr (kReal) {
      to = value;
    } else if constexpr (std::is_same_v<Value, Activation>) {
      to = whole<Activation>(value);
    } else {
      to = whole<std::int64_t>(value);
    }
  };
  return row;
}

template <std::size_t i>
void append_forward_rows(std::vector<Parameter>& table) {
  const auto add = [&](Parameter row) { table.push_back(std::move(row)); };
  add(tensor_row<Forward, &Segment::weight, i>("weight#", Role::kInput, "C#,d", Element::kSame));
  add(tensor_row<Forward, &Segment::bias, i>("bias#", Role::kInput, "C#", Element::kSameOrFp32));
  add(number_row<&Segment::activation, i>("activation#"));
  add(number_row<&Segment::divisor, i>("divisor#"));
  add(number_row<&Segment::min, i>("min#"));
  add(number_row<&Segment::max, i>("max#"));
  add(number_row<&Segment::head_width, i>("head_width#"));
  add(tensor_row<Forward, &Segment::out, i>("out#", Role::kOutput, "M,C#", Element::kSameOrFp32)
          .made(numbered("weight#", i)));
  add(tensor_row<Forward, &Segment::slope, i>("slope#", Role::kOutput, "M,C#", Element::kSameOrFp32)
          .of_dtype(numbered("out#", i)));
  add(tensor_row<Forward, &Segment::inverse_norm, i>("inverse_norm#", Role::kOutput,
                                                     "M,C#/head_width#", Element::kFp32));
}

template <std::size_t i>
void append_backward_rows(std::vector<Parameter>& table) {
  const auto add = [&](Parameter row) { table.push_back(std::move(row)); };
  const char* const d_out = numbered("d_out#", i);
  add(tensor_row<Backward, &Gradient::weight, i>("weight#", Role::kInput, "C#,d", Element::kSame));
  add(tensor_row<Backward, &Gradient::bias, i>("bias#", Role::kInput, "C#", Element::kSameOrFp32));
  add(tensor_row<Backward, &Gradient::d_out, i>("d_out#", Role::kInput, "M,C#",
                                                Element::kSameOrFp32));
  add(tensor_row<Backward, &Gradient::slope, i>("slope#", Role::kInput, "M,C#",
                                                Element::kSameOrFp32)
          .of_dtype(d_out));
  add(tensor_row<Backward, &Gradient::out, i>("out#", Role::kInput, "M,C#", Element::kSameOrFp32)
          .of_dtype(d_out));
  add(tensor_row<Backward, &Gradient::inverse_norm, i>("inverse_norm#", Role::kInput, "M,H#",
                                                       Element::kFp32));
  add(gradient_row<Backward, &Gradient::d_weight, i>("d_weight#", "weight#", false));
  add(gradient_row<Backward, &Gradient::d_bias, i>("d_bias#", "bias#", true));
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

/// Checks how many segments there are, and that their columns together can be counted by an int.
template <class Args>
void check_segments(const Signature& signature, const Args& args) {
  const std::size_t count = args.segments.size();
  if (count < 1 || count > kMostProjectionSegments) {
    refuse(signature.name(), "segments must be 1 to " + std::to_string(kMostProjectionSegments) +
                                 ", got " + std::to_string(count));
  }
  std::int64_t columns = 0;
  for (const auto& segment : args.segments) {
    if (segment.weight.shape.rank() != 2) continue;  // refused with its shape
    const std::int64_t rows = segment.weight.shape[0];
    columns = rows > std::numeric_limits<int>::max() ? rows : columns + rows;
    if (columns > std::numeric_limits<int>::max()) {
      refuse(signature.name(),
             "segments must have less than 2^31 columns together, got " + std::to_string(columns));
    }
  }
}

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

void* data_of(const std::optional<TensorView>& view) { return view ? view->data : nullptr; }

/// Sets what a forward and a backward problem have in common.
template <class Problem, class Args>
void set_sizes(Problem& problem, const Args& args) {
  problem.dtype = args.x.dtype;
  problem.device = args.x.device;
  problem.M = args.x.shape[0];
  problem.d = static_cast<int>(args.x.shape[1]);
  problem.x = matrix_tensor(args.x);
  problem.segment_count = static_cast<int>(args.segments.size());
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
  check_segments(signature, args);
  ProjectionForwardProblem problem;
  for (std::size_t i = 0; i < args.segments.size(); ++i) {
    problem.segments[i] = activation_of(SegmentCheck(signature, i), args.segments[i]);
  }
  signature.check(&args);
  set_sizes(problem, args);
  for (std::size_t i = 0; i < args.segments.size(); ++i) {
    const Segment& from = args.segments[i];
    ProjectionForwardSegment& to = problem.segments[i];
    to.columns = static_cast<int>(from.weight.shape[0]);
    to.weight = matrix_tensor(from.weight);
    if (from.bias) to.bias_dtype = from.bias->dtype;
    to.bias = data_of(from.bias);
    to.out_dtype = from.out.dtype;
    to.out = matrix_tensor(from.out);
    to.slope = matrix_tensor(from.slope);
    to.inverse_norm = matrix_tensor(from.inverse_norm);
  }
  return problem;
}

ProjectionBackwardProblem make_problem(const ProjectionBackwardArgs& args) {
  const Signature& signature = projection_backward_signature();
  check_segments(signature, args);
  ProjectionBackwardProblem problem;
  for (std::size_t i = 0; i < args.segments.size(); ++i) {
    problem.segments[i] = kept_of(SegmentCheck(signature, i), args.segments[i]);
  }
  signature.check(&args);
  set_sizes(problem, args);
  for (std::size_t i = 0; i < args.segments.size(); ++i) {
    const Gradient& from = args.segments[i];
    ProjectionBackwardSegment& to = problem.segments[i];
    to.columns = static_cast<int>(from.weight.shape[0]);
    to.weight = matrix_tensor(from.weight);
    if (from.d_out) to.out_dtype = from.d_out->dtype;
    to.d_out = matrix_tensor(from.d_out);
    to.slope = matrix_tensor(from.slope);
    if (from.inverse_norm) to.out = matrix_tensor(from.out);
    to.inverse_norm = matrix_tensor(from.inverse_norm);
    if (from.d_weight) to.d_weight_dtype = from.d_weight->dtype;
    to.d_weight = matrix_tensor(from.d_weight);
    if (from.d_bias) to.d_bias_dtype = from.d_bias->dtype;
    to.d_bias = data_of(from.d_bias);
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
