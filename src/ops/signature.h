// The tensors of a call, described once: what checks, tools and bindings follow from. Each op's
// tables stand in ops/<op>.cpp, beside the makers of its checked problems.
#pragma once

#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "core/call_options.h"
#include "tandem/context.h"
#include "tandem/device.h"
#include "tandem/tensor.h"

namespace tandem {

/// What a call does with a tensor. A gradient is an output that belongs to an input.
enum class Role { kInput, kOutput, kInPlace, kGradient };

/// Which dtypes a tensor may have. The first tensor of a table says what `kSame` is; where that is
/// fp64, so is every other but what is int32.
enum class Element {
  kMatrix,      // bf16 or fp16, on the CPU also fp32 and fp64: where products of matrices are
  kAny,         // bf16, fp16 or fp32, on the CPU also fp64
  kSame,        // as the call's first tensor
  kSameOrFp32,  // as the call's first tensor, or fp32
  kFp32,
  kFp32OrBf16,
  kOffsets,    // int32: cu_seqlens
  kPositions,  // int32: a place per row, a length per batch
};

/// Which strides a tensor may have.
enum class Layout { kRows, kContiguous, kFree };  // kRows: free, the innermost 1

/// Whether tensors of an element hold whole numbers, whatever the call's dtype is.
inline bool is_int32(Element element) {
  return element == Element::kOffsets || element == Element::kPositions;
}

/// The axes of a tensor by the op's names, "B,T,HQ,K", as indices into Signature::axes(). N is the
/// number of sequences: B without cu_seqlens. "T/128" and "C0/head_width0" are quotients of an axis
/// and a number, or a number of the call, rounded up; "W-1" is an axis less a number.
struct Axes {
  std::array<std::int8_t, Dims::kMaxRank> index{};
  int rank = 0;
};

/// A row of a table: a tensor, or a number that may be left out.
struct Parameter {
  const char* name;
  Role role = Role::kInput;
  bool optional = false;
  bool number = false;
  const char* axes_text = "";  // "N,H,K,V", or "H|B,T,H" for a choice
  Element element = Element::kSame;
  Layout layout = Layout::kRows;
  const char* instead_of = nullptr;  // exactly one of it and this input is given
  /// Of a gradient: its input, whose axes, dtype and layout it has. An input that the call itself
  /// does not take names only whose gradient it is.
  const char* source = nullptr;
  bool needs_source = false;        // of a gradient: it cannot be asked for without its input
  const char* may_be = nullptr;     // an input that this output may share memory with, in place
  const char* made_with = nullptr;  // the input with which this output is made, without being asked
  const char* kept_as = nullptr;   // of a backward's input: its forward's output of the same values
  const char* dtype_of = nullptr;  // of kSameOrFp32: the tensor that says which, where it is given
  bool or_fp32 = false;            // of a gradient: whatever its input is
  bool whole = false;              // of a number
  /// Of a number: 0 or 1, and of outputs that the caller gives. Torch and files, whose outputs are
  /// made for the call, do not have it.
  bool is_flag = false;
  bool is_choice_of_two = false;  // of a number: any but 0 is 1; torch and files have it
  bool cpp_alone = false;         // an input that torch does not have
  bool in_tiles = false;          // an input that CUDA kernels copy by TMA, or several times slower
  std::vector<Axes> axes = {};    // the choices of axes_text; filled by Signature

  const TensorView* (*view)(const void* args) = nullptr;  // null: absent
  void (*set_view)(void* args, const TensorView& view) = nullptr;
  void (*unset)(void* args) = nullptr;  // of an optional tensor
  std::optional<double> (*value)(const void* args) = nullptr;
  void (*set_value)(void* args, double value) = nullptr;

  bool is_output() const { return role != Role::kInput; }
  bool is_tensor() const { return !number; }

  /// For tables: input(...).instead("decay"), output(...).or_in("initial_state"),
  /// input(...).or_kept("kept_rstd"), output(...).made("weight0"), output(...).of_dtype("out0"),
  /// gradient(...).also_fp32().
  Parameter instead(const char* other) && {
    instead_of = other;
    return std::move(*this);
  }
  Parameter or_in(const char* input) && {
    may_be = input;
    return std::move(*this);
  }
  Parameter or_kept(const char* output) && {
    kept_as = output;
    return std::move(*this);
  }
  Parameter made(const char* with_input) && {
    made_with = with_input;
    return std::move(*this);
  }
  Parameter of_dtype(const char* tensor) && {
    dtype_of = tensor;
    return std::move(*this);
  }
  Parameter also_fp32() && {
    or_fp32 = true;
    return std::move(*this);
  }
  Parameter in_cpp_alone() && {
    cpp_alone = true;
    return std::move(*this);
  }
  Parameter tiled() && {
    in_tiles = true;
    return std::move(*this);
  }

  /// Whether a call takes less time with a contiguous copy of this input, the copy included: on
  /// CUDA, where TMA cannot read the tensor but can read the copy, and from a size on that was
  /// measured (docs/ops/gla.log.md). For who has memory for copies: a call itself makes none.
  bool better_copied(const TensorView& view) const;
};

/// Whether an axis may have no elements: batches, tokens, rows, columns of a product ("F"), and
/// what a segment has ("C0").
inline bool may_be_empty(std::string_view axis) {
  return axis == "B" || axis == "T" || axis == "TQ" || axis == "TK" || axis == "M" || axis == "F" ||
         (axis.back() >= '0' && axis.back() <= '9');
}

/// A call: its name, its table and who runs it. `args` below are the public struct that the table
/// is of.
class Signature {
 public:
  struct Backends {
    std::function<void(const void* args, const Context&, const CallOptions&)> run;
    std::function<std::size_t(const void* args, const DeviceProperties&, const CallOptions&)>
        workspace_bytes;
    std::function<std::shared_ptr<void>()> make_args;
  };

  Signature(const char* name, std::vector<Parameter> parameters, Backends backends);

  const char* name() const { return name_; }  ///< "linear_scan_forward"
  const std::vector<Parameter>& parameters() const { return parameters_; }
  const std::vector<std::string>& axes() const { return axes_; }
  const Parameter* find(std::string_view name) const;

  /// Checks everything that the table says: ranks, shapes, dtypes, devices, strides, that nothing
  /// is null, and that no output overlaps itself or anything else. Throws InvalidArgument.
  void check(const void* args) const;

  /// Checks and runs the call.
  void run(const void* args, const Context& context, const CallOptions& options) const {
    backends_.run(args, context, options);
  }
  /// Checks the call, and that the properties are of a device of the tensors' type. Returns the
  /// bytes of workspace that it needs.
  std::size_t workspace_bytes(const void* args, const DeviceProperties& device,
                              const CallOptions& options) const;
  /// Makes arguments in which no tensor is set.
  std::shared_ptr<void> make_args() const { return backends_.make_args(); }

  /// The device of the call's tensors.
  Device device(const void* args) const { return parameters_.front().view(args)->device; }

  /// Extents by axis, as the inputs that are there give them: -1 for one that is not known because
  /// ranks do not fit. For whoever makes outputs.
  std::vector<std::int64_t> extents(const void* args) const;

  /// The shape of an output by these extents; none where an extent is not known.
  std::optional<Dims> shape(const Parameter& output, const void* args,
                            const std::vector<std::int64_t>& extents) const;

  /// The dtype of an output; of kSameOrFp32 the first of the two, or what dtype_of has.
  DType dtype(const Parameter& output, const void* args) const;

 private:
  struct Check;
  /// Axes that no tensor names: the extent of another, divided by a number or less it.
  struct Quotient {
    int axis, dividend;
    const Parameter* divisor;  // a number of the call, or null
    std::int64_t constant;     // else
  };
  struct Difference {
    int axis, minuend;
    std::int64_t constant;
  };

  int axis(const std::string& name);
  std::vector<Axes> parse(const char* text);
  /// Sets the axes that no tensor names.
  void derive(const void* args, std::span<std::int64_t> extents) const;

  const char* name_;
  std::vector<Parameter> parameters_;
  std::vector<std::string> axes_;
  std::vector<Quotient> quotients_;
  std::vector<Difference> differences_;
  Backends backends_;
};

/// Every call of the library, for tools and bindings.
const std::vector<const Signature*>& signatures();

/// A call by its name, or null.
const Signature* find_signature(const std::string& name);

// Rows, by the member of the public struct: required where it is a TensorView, else optional.

namespace detail {

template <class Member>
struct MemberOf;
template <class Args, class Type>
struct MemberOf<Type Args::*> {
  using Struct = Args;
  using Value = Type;
};

template <auto member>
Parameter tensor_row(const char* name, Role role) {
  using Args = typename MemberOf<decltype(member)>::Struct;
  using Value = typename MemberOf<decltype(member)>::Value;
  constexpr bool kOptional = !std::is_same_v<Value, TensorView>;
  Parameter row{name, role, kOptional};
  row.view = [](const void* args) -> const TensorView* {
    const Value& value = static_cast<const Args*>(args)->*member;
    if constexpr (kOptional) {
      return value ? &*value : nullptr;
    } else {
      return &value;
    }
  };
  row.set_view = [](void* args, const TensorView& view) {
    static_cast<Args*>(args)->*member = view;
  };
  if constexpr (kOptional) {
    row.unset = [](void* args) { (static_cast<Args*>(args)->*member).reset(); };
  }
  return row;
}

template <auto member>
Parameter tensor_row(const char* name, Role role, const char* axes, Element element,
                     Layout layout) {
  Parameter row = tensor_row<member>(name, role);
  row.axes_text = axes;
  row.element = element;
  row.layout = layout;
  return row;
}

}  // namespace detail

template <auto member>
Parameter input(const char* name, const char* axes, Element element = Element::kSame,
                Layout layout = Layout::kRows) {
  return detail::tensor_row<member>(name, Role::kInput, axes, element, layout);
}

template <auto member>
Parameter output(const char* name, const char* axes, Element element = Element::kSame,
                 Layout layout = Layout::kRows) {
  return detail::tensor_row<member>(name, Role::kOutput, axes, element, layout);
}

template <auto member>
Parameter in_place(const char* name, const char* axes, Element element) {
  return detail::tensor_row<member>(name, Role::kInPlace, axes, element, Layout::kRows);
}

/// The gradient by the input `source`, of its axes, dtype and layout. An optional input must be
/// there, unless its absence is a value like any other (an initial state that is 0).
template <auto member>
Parameter gradient(const char* name, const char* source, bool needs_source = true) {
  Parameter row = detail::tensor_row<member>(name, Role::kGradient);
  row.source = source;
  row.needs_source = needs_source;
  return row;
}

/// Offsets of sequences, [N+1]. Where a call has several of them, they list equally many.
template <auto member>
Parameter cu_seqlens(const char* name = "cu_seqlens") {
  return detail::tensor_row<member>(name, Role::kInput, "", Element::kOffsets, Layout::kContiguous);
}

template <auto member>
Parameter number(const char* name) {
  using Args = typename detail::MemberOf<decltype(member)>::Struct;
  Parameter row{name};
  row.optional = row.number = true;
  row.value = [](const void* args) -> std::optional<double> {
    return static_cast<const Args*>(args)->*member;
  };
  row.set_value = [](void* args, double value) { static_cast<Args*>(args)->*member = value; };
  return row;
}

/// The number as an integer; one that none is becomes one that every check refuses.
template <class Integer>
Integer whole(double value) {
  constexpr double kEnd = 2147483648.0;
  const bool fits = value > -kEnd && value < kEnd && value == std::floor(value);
  return static_cast<Integer>(fits ? static_cast<int>(value) : std::numeric_limits<int>::min());
}

/// A whole number.
template <auto member>
Parameter whole_number(const char* name) {
  using Args = typename detail::MemberOf<decltype(member)>::Struct;
  Parameter row = number<member>(name);
  row.whole = true;
  row.set_value = [](void* args, double value) {
    static_cast<Args*>(args)->*member = whole<std::int64_t>(value);
  };
  return row;
}

/// A choice among the numbers of an enumeration.
template <auto member>
Parameter choice(const char* name) {
  using Args = typename detail::MemberOf<decltype(member)>::Struct;
  using Value = typename detail::MemberOf<decltype(member)>::Value;
  Parameter row{name};
  row.optional = row.number = row.whole = true;
  row.value = [](const void* args) -> std::optional<double> {
    return static_cast<double>(static_cast<const Args*>(args)->*member);
  };
  row.set_value = [](void* args, double value) {
    static_cast<Args*>(args)->*member = whole<Value>(value);
  };
  return row;
}

/// The gradient by an input of the forward that this call does not take.
template <auto member>
Parameter gradient_of_another(const char* name, const char* source, const char* axes) {
  Parameter row = detail::tensor_row<member>(name, Role::kGradient);
  row.source = source;
  row.axes_text = axes;
  return row;
}

/// Whether the call is to do something: a bool.
template <auto member>
Parameter flag(const char* name) {
  using Args = typename detail::MemberOf<decltype(member)>::Struct;
  Parameter row{name};
  row.optional = row.number = row.is_flag = true;
  row.value = [](const void* args) -> std::optional<double> {
    return static_cast<const Args*>(args)->*member;
  };
  row.set_value = [](void* args, double value) { static_cast<Args*>(args)->*member = value != 0; };
  return row;
}

/// One of two ways, which torch and files choose too: a bool.
template <auto member>
Parameter choice_of_two(const char* name) {
  Parameter row = flag<member>(name);
  row.is_flag = false;
  row.is_choice_of_two = true;
  return row;
}

}  // namespace tandem
