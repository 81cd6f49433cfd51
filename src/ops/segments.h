// What calls share that have segments of columns, each with a weight and an output of its own: rows
// of their tables, checks, and fields of their problems.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "core/check.h"
#include "ops/projection_problem.h"
#include "ops/signature.h"
#include "ops/views.h"

namespace tandem {

// Rows of a segment. They carry its number, and take a member of its struct where the call has so
// many segments.

/// The text, with a segment's number for each '#'. It is kept as long as the program runs.
inline const char* numbered(const std::string& text, std::size_t segment) {
  static std::mutex mutex;  // the tables of several calls may be made at one time
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
Parameter segment_row(const char* name, Role role) {
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
Parameter segment_row(const char* name, Role role, const char* axes, Element element) {
  Parameter row = segment_row<Args, member, segment>(name, role);
  row.axes_text = numbered(axes, segment);
  row.element = element;
  return row;
}

template <class Args, auto member, std::size_t segment>
Parameter segment_gradient(const char* name, const char* source, bool needs_source) {
  Parameter row = segment_row<Args, member, segment>(name, Role::kGradient);
  row.source = numbered(source, segment);
  row.needs_source = needs_source;
  return std::move(row).also_fp32();
}

/// A number of a segment: real or whole where the member may be absent, a choice of two where it is
/// a bool, else a choice among the numbers of an enumeration.
template <class Args, auto member, std::size_t segment>
Parameter segment_number(const char* name) {
  using Value = typename detail::MemberOf<decltype(member)>::Value;
  constexpr bool kReal = std::is_same_v<Value, std::optional<double>>;
  constexpr bool kWhole = std::is_same_v<Value, std::optional<std::int64_t>>;
  constexpr bool kBool = std::is_same_v<Value, bool>;
  Parameter row{numbered(name, segment)};
  row.optional = row.number = true;
  row.whole = !kReal && !kBool;
  row.is_choice_of_two = kBool;
  row.value = [](const void* args) -> std::optional<double> {
    const auto* one = segment_of<Args, segment>(args);
    if (one == nullptr) return std::nullopt;
    if constexpr (kReal || kWhole) {
      return one->*member ? std::optional(static_cast<double>(*(one->*member))) : std::nullopt;
    } else {
      return static_cast<double>(one->*member);
    }
  };
  row.set_value = [](void* args, double value) {
    auto& to = make_segment<Args, segment>(args).*member;
    if constexpr (kReal) {
      to = value;
    } else if constexpr (kWhole) {
      to = whole<std::int64_t>(value);
    } else if constexpr (kBool) {
      to = value != 0;
    } else {
      to = whole<Value>(value);
    }
  };
  return row;
}

/// Checks how many segments there are, and that their columns together can be counted by an int.
template <class Args>
void check_segments(const Signature& signature, const Args& args, std::size_t most) {
  const std::size_t count = args.segments.size();
  if (count < 1 || count > most) {
    refuse(signature.name(),
           "segments must be 1 to " + std::to_string(most) + ", got " + std::to_string(count));
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

// Fields of a projection's problem, from the checked arguments of a call that is one.

inline void* data_of(const std::optional<TensorView>& view) { return view ? view->data : nullptr; }

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

template <class Segment>
void set_product(ProjectionForwardSegment& to, const Segment& from) {
  to.columns = static_cast<int>(from.weight.shape[0]);
  to.weight = matrix_tensor(from.weight);
  if (from.bias) to.bias_dtype = from.bias->dtype;
  to.bias = data_of(from.bias);
  to.out_dtype = from.out.dtype;
  to.out = matrix_tensor(from.out);
}

template <class Gradient>
void set_product(ProjectionBackwardSegment& to, const Gradient& from) {
  to.columns = static_cast<int>(from.weight.shape[0]);
  to.weight = matrix_tensor(from.weight);
  if (from.d_out) to.out_dtype = from.d_out->dtype;
  to.d_out = matrix_tensor(from.d_out);
  if (from.d_weight) to.d_weight_dtype = from.d_weight->dtype;
  to.d_weight = matrix_tensor(from.d_weight);
  if (from.d_bias) to.d_bias_dtype = from.d_bias->dtype;
  to.d_bias = data_of(from.d_bias);
}

}  // namespace tandem
