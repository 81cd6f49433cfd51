#include "ops/signature.h"

#include <algorithm>
#include <limits>
#include <span>
#include <stdexcept>

#include "core/check.h"
#include "core/real.h"

namespace tandem {
namespace {

constexpr std::int64_t kUnknown = -1;
constexpr std::size_t kMostAxes = 32;
constexpr int kBatch = 0;  // the index of B, which N is without cu_seqlens

/// Splits "H|B,T,H" at '|', "B,T,H" at ','.
std::vector<std::string> split(const std::string& text, char at) {
  std::vector<std::string> parts(1);
  for (const char c : text) {
    if (c == at) {
      parts.emplace_back();
    } else {
      parts.back() += c;
    }
  }
  return parts;
}

/// Whether an axis has its extent from others, not from a tensor that names it.
bool is_derived(const std::string& axis) {
  return axis == "N" || axis.find_first_of("/-") != std::string::npos;
}

/// Checks that these innermost extents, which `names` names, are in [1,2^31).
void check_extents(const Argument& argument, const std::string& names, int count) {
  constexpr std::int64_t kLargest = std::numeric_limits<std::int32_t>::max();
  const Dims& shape = argument.view.shape;
  for (int axis = shape.rank() - count; axis < shape.rank(); ++axis) {
    if (shape[axis] < 1 || shape[axis] > kLargest) {
      refuse(argument.op, std::string(argument.name) + " must have " + names +
                              " in [1,2^31), got shape " + to_string(shape));
    }
  }
}

[[noreturn]] void refuse_dtype(const Argument& argument, const std::string& expected) {
  refuse(argument.op, std::string(argument.name) + " must have dtype " + expected + ", got " +
                          to_string(argument.view.dtype));
}

/// Checks offsets [N+1] beside activations of B batches, or of rows without an axis B; returns N.
/// `others` is the N of offsets before them. No value is read.
std::int64_t check_offsets(const Argument& cu_seqlens, std::int64_t B, std::int64_t others,
                           Device device) {
  if (B != 1 && B != kUnknown) {
    refuse(cu_seqlens.op,
           std::string(cu_seqlens.name) + " needs B = 1, got B = " + std::to_string(B));
  }
  check_rank(cu_seqlens, "[N+1]", 1);
  const std::int64_t length = cu_seqlens.view.shape[0];
  if (length < 1) {
    refuse(cu_seqlens.op,
           std::string(cu_seqlens.name) + " must have shape [N+1] with N >= 0, got [0]");
  }
  check_shape(cu_seqlens, "[N+1]", {others == kUnknown ? length : others + 1});
  check_dtype(cu_seqlens, DType::kInt32);
  check_device(cu_seqlens, device);
  check_data(cu_seqlens);
  check_alignment(cu_seqlens);
  check_contiguous(cu_seqlens);
  return length - 1;
}

}  // namespace

bool Parameter::better_copied(const TensorView& view) const {
  constexpr std::int64_t kFewestBytes = 1 << 20;
  constexpr std::int64_t kAligned = 16;  // bytes, of a base and of strides
  if (!in_tiles || view.device.type != DeviceType::kCuda) return false;
  const std::int64_t size = size_of(view.dtype);
  const int last = view.shape.rank() - 1;
  if (last < 0 || view.shape[last] * size % kAligned != 0) return false;
  if (view.shape.product() * size < kFewestBytes) return false;
  if (reinterpret_cast<std::uintptr_t>(view.data) % kAligned != 0) return true;
  for (int axis = 0; axis < last; ++axis) {
    const std::int64_t stride = view.strides[axis] * size;
    if (view.shape[axis] > 1 && (stride <= 0 || stride % kAligned != 0)) return true;
  }
  return false;
}

Signature::Signature(const char* name, std::vector<Parameter> parameters, Backends backends)
    : name_(name), parameters_(std::move(parameters)), backends_(std::move(backends)) {
  for (Parameter& row : parameters_) {
    if (row.number || row.element == Element::kOffsets) continue;
    if (const Parameter* source = row.source ? find(row.source) : nullptr) {
      row.axes_text = source->axes_text;
      row.element = row.or_fp32 ? Element::kSameOrFp32 : source->element;
      row.layout = source->layout;
    }
    row.axes = parse(row.axes_text);
  }
  for (std::size_t i = 0; i < axes_.size(); ++i) {
    if (const auto parts = split(axes_[i], '-'); parts.size() == 2) {
      differences_.push_back({static_cast<int>(i), axis(parts[0]), std::stoll(parts[1])});
    }
    const std::vector<std::string> parts = split(axes_[i], '/');
    if (parts.size() != 2) continue;
    const Parameter* divisor = find(parts[1]);
    quotients_.push_back({static_cast<int>(i), axis(parts[0]), divisor,
                          divisor == nullptr ? std::stoll(parts[1]) : 0});
  }
}

void Signature::derive(const void* args, std::span<std::int64_t> extents) const {
  for (const auto& [axis, minuend, constant] : differences_) {
    const std::int64_t extent = extents[minuend];
    extents[axis] = extent >= constant ? extent - constant : kUnknown;
  }
  for (const auto& [axis, dividend, divisor, constant] : quotients_) {
    const std::int64_t number =
        divisor ? static_cast<std::int64_t>(divisor->value(args).value_or(0)) : constant;
    const std::int64_t extent = extents[dividend];
    const bool known = extent != kUnknown && number > 0;
    extents[axis] = known ? extent / number + (extent % number != 0) : kUnknown;
  }
}

int Signature::axis(const std::string& name) {
  const auto at = std::find(axes_.begin(), axes_.end(), name);
  if (at != axes_.end()) return static_cast<int>(at - axes_.begin());
  if (axes_.size() == kMostAxes) throw std::logic_error(std::string(name_) + ": too many axes");
  axes_.push_back(name);
  return static_cast<int>(axes_.size()) - 1;
}

std::vector<Axes> Signature::parse(const char* text) {
  axis("B");  // the first: kBatch
  std::vector<Axes> choices;
  for (const std::string& choice : split(text, '|')) {
    Axes& axes = choices.emplace_back();
    for (const std::string& letter : split(choice, ',')) {
      axes.index[axes.rank++] = static_cast<std::int8_t>(axis(letter));
    }
  }
  return choices;
}

const Parameter* Signature::find(std::string_view name) const {
  const auto at = std::find_if(parameters_.begin(), parameters_.end(),
                               [&](const Parameter& row) { return name == row.name; });
  return at == parameters_.end() ? nullptr : &*at;
}

/// The check of one call.
struct Signature::Check {
  const Signature& signature;
  const void* args;
  std::array<std::int64_t, kMostAxes> extents{};
  bool listed = false;  // cu_seqlens is given

  Check(const Signature& signature, const void* args) : signature(signature), args(args) {
    extents.fill(kUnknown);
  }

  const TensorView* view(const char* name) const { return signature.find(name)->view(args); }
  Argument argument(const Parameter& row, const TensorView& view) const {
    return {signature.name(), row.name, view};
  }

  /// "[B,T,H]"; N is B without cu_seqlens.
  std::string text(const Axes& axes) const {
    std::string names;
    for (int i = 0; i < axes.rank; ++i) {
      const std::string& name = signature.axes()[axes.index[i]];
      names += (i ? "," : "[") + (name == "N" && !listed ? "B" : name);
    }
    return names + "]";
  }

  Dims expected(const Axes& axes) const {
    std::array<std::int64_t, Dims::kMaxRank> values{};
    for (int i = 0; i < axes.rank; ++i) values[i] = extents[axes.index[i]];
    return Dims(std::span<const std::int64_t>(values.data(), axes.rank));
  }

  /// Whether an input that is given names axes that no input before it has.
  bool names_axes(const Parameter& row) const {
    if (row.number || row.role != Role::kInput || row.axes.size() != 1) return false;
    if (row.view(args) == nullptr) return false;
    const Axes& axes = row.axes.front();
    return std::any_of(axes.index.begin(), axes.index.begin() + axes.rank, [&](int axis) {
      return extents[axis] == kUnknown && !is_derived(signature.axes()[axis]);
    });
  }

  /// Takes the extents from the inputs that name them.
  void bind() {
    std::array<const Parameter*, kMostAxes> naming{};
    std::size_t count = 0;
    for (const Parameter& row : signature.parameters()) {
      if (!names_axes(row)) continue;
      const TensorView& view = *row.view(args);
      const Axes& axes = row.axes.front();
      if (view.shape.rank() != axes.rank) {
        check_rank(argument(row, view), text(axes).c_str(), axes.rank);
      }
      for (int i = 0; i < axes.rank; ++i) {
        std::int64_t& extent = extents[axes.index[i]];
        if (extent == kUnknown) extent = view.shape[i];
      }
      naming[count++] = &row;
    }
    for (std::size_t i = 0; i < count; ++i) check_widths(*naming[i]);
    signature.derive(args, extents);
  }

  void check_widths(const Parameter& row) const {
    const Axes& axes = row.axes.front();
    std::string names;
    int widths = 0;
    for (int i = 0; i < axes.rank; ++i) {
      const std::string& name = signature.axes()[axes.index[i]];
      if (may_be_empty(name)) continue;
      names += (widths++ ? " and " : "") + name;
    }
    check_extents(argument(row, *row.view(args)), names, widths);
  }

  const Parameter& first() const { return signature.parameters().front(); }
  DType dtype() const { return first().view(args)->dtype; }
  Device device() const { return first().view(args)->device; }

  void check_first() const {
    const bool on_cpu = device().type == DeviceType::kCpu;
    const bool takes_fp32 = on_cpu || first().element == Element::kAny;
    if (dtype() == DType::kBFloat16 || dtype() == DType::kFloat16) return;
    if (takes_fp32 && dtype() == DType::kFloat32) return;
    if (on_cpu && dtype() == DType::kFloat64) return;
    const char* expected = on_cpu       ? "bf16, fp16, fp32 or fp64"
                           : takes_fp32 ? "bf16, fp16 or fp32"
                                        : "bf16 or fp16";
    refuse_dtype(argument(first(), *first().view(args)),
                 std::string(expected) + " on " + to_string(device()));
  }

  void count_sequences() {
    std::int64_t sequences = extents[kBatch];
    for (const Parameter& row : signature.parameters()) {
      if (row.element != Element::kOffsets || row.number) continue;
      const TensorView* offsets = row.view(args);
      if (!offsets) continue;
      const std::int64_t others = listed ? sequences : kUnknown;
      sequences = check_offsets(argument(row, *offsets), extents[kBatch], others, device());
      listed = true;
    }
    for (std::size_t i = 0; i < signature.axes().size(); ++i) {
      if (signature.axes()[i] == "N") extents[i] = sequences;
    }
  }

  void check_alternatives() const {
    for (const Parameter& row : signature.parameters()) {
      if (row.instead_of == nullptr) continue;
      const bool one = row.view(args) != nullptr, other = view(row.instead_of) != nullptr;
      if (one != other) continue;
      refuse(signature.name(), std::string("exactly one of ") + row.instead_of + " and " +
                                   row.name + " must be given, got " + (one ? "both" : "neither"));
    }
  }

  /// Checks the dtypes of a choice, and returns the one that the tensor must have.
  DType check_element(const Parameter& row, const TensorView& tensor) const {
    if (row.element == Element::kPositions) return DType::kInt32;
    if (dtype() == DType::kFloat64) return dtype();
    switch (row.element) {
      case Element::kFp32: return DType::kFloat32;
      case Element::kSameOrFp32: {
        if (row.source != nullptr && !row.or_fp32) return view(row.source)->dtype;
        if (row.dtype_of != nullptr) {
          if (const TensorView* other = view(row.dtype_of)) return other->dtype;
        }
        if (tensor.dtype == dtype() || tensor.dtype == DType::kFloat32) return tensor.dtype;
        refuse_dtype(argument(row, tensor),
                     to_string(dtype()) + (dtype() == DType::kFloat32 ? "" : " or fp32"));
      }
      case Element::kFp32OrBf16:
        if (tensor.dtype == DType::kFloat32 || tensor.dtype == DType::kBFloat16) {
          return tensor.dtype;
        }
        refuse_dtype(argument(row, tensor), "fp32 or bf16");
      default: return dtype();
    }
  }

  /// The axes among a row's choices that a tensor has, of a gradient those of its input.
  const Axes& axes_of(const Parameter& row, const TensorView& tensor) const {
    if (row.axes.size() == 1) return row.axes.front();
    const TensorView* like = row.source != nullptr ? view(row.source) : &tensor;
    std::string choices;
    for (const Axes& axes : row.axes) {
      if (axes.rank == like->shape.rank()) return axes;
      choices += (choices.empty() ? "" : " or ") + text(axes);
    }
    check_rank(argument(row, tensor), choices.c_str(), -1);
    return row.axes.front();  // not reached
  }

  void check_tensor(const Parameter& row, const TensorView& tensor) const {
    if (row.needs_source && view(row.source) == nullptr) {
      refuse(signature.name(), std::string(row.name) + " needs " + row.source);
    }
    const Argument one = argument(row, tensor);
    const Axes& axes = axes_of(row, tensor);
    const DType dtype = check_element(row, tensor);
    // why the test before: the axes' names, for the message, take longer than the check.
    if (const Dims shape = expected(axes); tensor.shape != shape) {
      check_shape(one, text(axes).c_str(), shape);
    }
    check_dtype(one, dtype);
    check_device(one, device());
    check_data(one);
    check_alignment(one);
    if (row.layout == Layout::kRows) check_unit_innermost_stride(one);
    if (row.layout == Layout::kContiguous) check_contiguous(one);
  }

  void check_tensors() const {
    for (const Parameter& row : signature.parameters()) {
      if (row.number || row.element == Element::kOffsets) continue;
      if (const TensorView* tensor = row.view(args)) check_tensor(row, *tensor);
    }
  }

  static bool is_in_place(const Parameter& output, const TensorView& to, const Parameter& input,
                          const TensorView& from) {
    return output.may_be != nullptr && std::string_view(output.may_be) == input.name &&
           from.data == to.data;
  }

  /// No output may lie over itself, an input or another output.
  void check_overlaps() const {
    std::vector<std::pair<const Parameter*, const TensorView*>> given;
    given.reserve(signature.parameters().size());
    for (const Parameter& row : signature.parameters()) {
      const TensorView* tensor = row.number ? nullptr : row.view(args);
      if (tensor) given.emplace_back(&row, tensor);
    }
    for (std::size_t i = 0; i < given.size(); ++i) {
      const auto [row, tensor] = given[i];
      if (!row->is_output()) continue;
      const Argument output = argument(*row, *tensor);
      if (row->layout != Layout::kContiguous) check_no_self_overlap(output);
      for (std::size_t j = 0; j < given.size(); ++j) {
        const auto [other_row, other] = given[j];
        if (j == i) continue;
        if (other_row->is_output()) {
          // Each pair of outputs once: a gradient beside those before it, others beside those
          // after.
          if ((row->role == Role::kGradient) != (j < i)) continue;
        } else if (is_in_place(*row, *tensor, *other_row, *other)) {
          continue;
        }
        check_disjoint(output, argument(*other_row, *other));
      }
    }
  }
};

void Signature::check(const void* args) const {
  Check check(*this, args);
  check.bind();
  check.check_first();
  check.count_sequences();
  check.check_alternatives();
  check.check_tensors();
  check.check_overlaps();
}

std::size_t Signature::workspace_bytes(const void* args, const DeviceProperties& device,
                                       const CallOptions& options) const {
  return backends_.workspace_bytes(args, device, options);
}

std::vector<std::int64_t> Signature::extents(const void* args) const {
  std::vector<std::int64_t> extents(axes_.size(), kUnknown);
  const TensorView* offsets = nullptr;
  for (const Parameter& row : parameters_) {
    if (row.number || row.role != Role::kInput) continue;
    const TensorView* tensor = row.view(args);
    if (!tensor) continue;
    if (row.element == Element::kOffsets) {
      offsets = tensor;
      continue;
    }
    for (const Axes& axes : row.axes) {
      if (axes.rank != tensor->shape.rank()) continue;
      for (int i = 0; i < axes.rank; ++i) {
        std::int64_t& extent = extents[axes.index[i]];
        if (extent == kUnknown) extent = tensor->shape[i];
      }
      break;
    }
  }
  const bool lists = offsets && offsets->shape.rank() == 1 && offsets->shape[0] > 0;
  for (std::size_t i = 0; i < axes_.size(); ++i) {
    if (axes_[i] == "N") extents[i] = lists ? offsets->shape[0] - 1 : extents[kBatch];
  }
  derive(args, extents);
  return extents;
}

std::optional<Dims> Signature::shape(const Parameter& output, const void* args,
                                     const std::vector<std::int64_t>& extents) const {
  if (const Parameter* input = output.source ? find(output.source) : nullptr) {
    const TensorView* source = input->view(args);
    return source ? std::optional(source->shape) : std::nullopt;
  }
  std::array<std::int64_t, Dims::kMaxRank> values{};
  const Axes& axes = output.axes.front();
  for (int i = 0; i < axes.rank; ++i) {
    values[i] = extents[axes.index[i]];
    if (values[i] == kUnknown) return std::nullopt;
  }
  return Dims(std::span<const std::int64_t>(values.data(), axes.rank));
}

DType Signature::dtype(const Parameter& output, const void* args) const {
  if (const Parameter* input = output.source ? find(output.source) : nullptr) {
    return input->view(args)->dtype;
  }
  const TensorView* other = output.dtype_of ? find(output.dtype_of)->view(args) : nullptr;
  if (other != nullptr) return other->dtype;
  const DType first = parameters_.front().view(args)->dtype;
  return output.element == Element::kFp32 ? real_dtype(first) : first;
}

}  // namespace tandem
