#include "core/check.h"

#include <algorithm>
#include <array>

#include "core/saturate.h"

namespace tandem {
namespace {

/// Whether there is nothing that strides could lead to: torch gives such tensors any.
bool is_empty(const TensorView& view) { return view.shape.product() == 0; }

/// One axis of a view, in bytes.
struct Axis {
  std::int64_t extent;
  std::int64_t stride;
};

/// Axes of more than one element, innermost (smallest stride) first. Negative strides are rejected
/// by check_data before anything looks at the layout.
class SignificantAxes {
 public:
  explicit SignificantAxes(const TensorView& view) : element_(size_of(view.dtype)) {
    for (int i = 0; i < view.shape.rank(); ++i) {
      if (view.shape[i] > 1) insert({view.shape[i], view.strides[i] * element_});
    }
  }

  std::size_t size() const { return count_; }
  const Axis& operator[](std::size_t i) const { return axes_[i]; }
  const Axis* begin() const { return axes_.data(); }
  const Axis* end() const { return axes_.data() + count_; }

  /// Bytes from the first to the end of the last element along the first `count` axes.
  std::int64_t span_bytes(std::size_t count) const {
    std::int64_t bytes = element_;
    for (std::size_t i = 0; i < count; ++i) bytes += (axes_[i].extent - 1) * axes_[i].stride;
    return bytes;
  }

 private:
  void insert(const Axis& axis) {
    std::size_t at = count_++;
    for (; at > 0 && axes_[at - 1].stride > axis.stride; --at) axes_[at] = axes_[at - 1];
    axes_[at] = axis;
  }

  std::array<Axis, Dims::kMaxRank> axes_;
  std::size_t count_ = 0;
  std::int64_t element_;
};

/// Bytes from the first to the end of the last element of a view that is not empty; kSaturated from
/// 2^63 on.
std::int64_t span_bytes(const TensorView& view) {
  std::int64_t elements = 1;
  for (int i = 0; i < view.shape.rank(); ++i) {
    elements = saturating_add(elements, saturating_multiply(view.shape[i] - 1, view.strides[i]));
  }
  return saturating_multiply(elements, size_of(view.dtype));
}

/// Bytes that a view lies over or has elements for, whichever is more: an expanded axis lies over
/// nothing, but is worked through.
std::int64_t size_in_memory(const TensorView& view) {
  if (is_empty(view)) return 0;
  return std::max(saturating_multiply(view.shape.product(), size_of(view.dtype)), span_bytes(view));
}

/// Whether two views repeat with one common period inside which they are disjoint, as q, k and v
/// slices of one packed buffer are.
bool interleaved_apart(const TensorView& a, const TensorView& b) {
  const SignificantAxes axes_a(a), axes_b(b);
  for (std::size_t i = 0; i <= axes_a.size(); ++i) {
    for (std::size_t j = 0; j <= axes_b.size(); ++j) {
      if (i == axes_a.size() && j == axes_b.size()) continue;
      const std::int64_t period = i < axes_a.size() ? axes_a[i].stride : axes_b[j].stride;
      if (period <= 0) continue;
      const auto is_multiple = [period](Axis axis) { return axis.stride % period == 0; };
      if (!std::all_of(axes_a.begin() + i, axes_a.end(), is_multiple) ||
          !std::all_of(axes_b.begin() + j, axes_b.end(), is_multiple)) {
        continue;
      }
      const std::int64_t inner_a = axes_a.span_bytes(i), inner_b = axes_b.span_bytes(j);
      std::int64_t offset =
          (reinterpret_cast<std::intptr_t>(a.data) - reinterpret_cast<std::intptr_t>(b.data)) %
          period;
      if (offset < 0) offset += period;
      if (offset >= inner_b && offset + inner_a <= period) return true;
    }
  }
  return false;
}

bool share_memory(const TensorView& a, const TensorView& b) {
  if (is_empty(a) || is_empty(b) || a.device != b.device) return false;
  const auto begin_a = reinterpret_cast<std::uintptr_t>(a.data);
  const auto begin_b = reinterpret_cast<std::uintptr_t>(b.data);
  return begin_a < begin_b + span_bytes(b) && begin_b < begin_a + span_bytes(a) &&
         !interleaved_apart(a, b);
}

}  // namespace

void refuse(const char* op, const std::string& text) {
  throw InvalidArgument("[" + std::string(op) + "] " + text);
}

void check_shape(const Argument& argument, const char* axes, const Dims& expected) {
  if (argument.view.shape == expected) return;
  refuse(argument.op, std::string(argument.name) + " must have shape " + axes + " = " +
                          to_string(expected) + ", got " + to_string(argument.view.shape));
}

void check_rank(const Argument& argument, const char* axes, int rank) {
  const TensorView& view = argument.view;
  if (view.shape.rank() != rank) {
    refuse(argument.op, std::string(argument.name) + " must have shape " + axes + ", got " +
                            to_string(view.shape));
  }
}

void check_dtype(const Argument& argument, DType expected) {
  if (argument.view.dtype == expected) return;
  refuse(argument.op, std::string(argument.name) + " must have dtype " + to_string(expected) +
                          ", got " + to_string(argument.view.dtype));
}

void check_device(const Argument& argument, Device expected) {
  if (argument.view.device == expected) return;
  refuse(argument.op, std::string(argument.name) + " must be on " + to_string(expected) + ", got " +
                          to_string(argument.view.device));
}

void check_data(const Argument& argument) {
  const TensorView& view = argument.view;
  if (view.strides.rank() != view.shape.rank()) {
    refuse(argument.op, std::string(argument.name) + " must have one stride per axis of " +
                            to_string(view.shape) + ", got " + to_string(view.strides));
  }
  for (int i = 0; i < view.shape.rank(); ++i) {
    if (view.shape[i] < 0) {
      refuse(argument.op,
             std::string(argument.name) + " must have extents >= 0, got " + to_string(view.shape));
    }
    if (view.strides[i] < 0) {
      refuse(argument.op, std::string(argument.name) + " must have strides >= 0, got " +
                              to_string(view.strides));
    }
  }
  if (size_in_memory(view) == kSaturated) {
    refuse(argument.op, std::string(argument.name) + " must have less than 2^63 bytes, got shape " +
                            to_string(view.shape) + " with strides " + to_string(view.strides));
  }
  if (view.data == nullptr && view.shape.product() > 0) {
    refuse(argument.op, std::string(argument.name) + " must point to " + to_string(view.shape) +
                            " elements, got a null pointer");
  }
}

void check_alignment(const Argument& argument) {
  const std::int64_t bytes = size_of(argument.view.dtype);
  const auto address = reinterpret_cast<std::uintptr_t>(argument.view.data);
  if (address % bytes == 0) return;
  refuse(argument.op, std::string(argument.name) + " must start at a multiple of its " +
                          std::to_string(bytes) + "-byte element, got an address " +
                          std::to_string(address % bytes) + " bytes past one");
}

void check_unit_innermost_stride(const Argument& argument) {
  const TensorView& view = argument.view;
  const int last = view.shape.rank() - 1;
  if (is_empty(view) || view.shape[last] <= 1 || view.strides[last] == 1) return;
  refuse(argument.op, std::string(argument.name) + " must have innermost stride 1, got strides " +
                          to_string(view.strides));
}

void check_contiguous(const Argument& argument) {
  const TensorView& view = argument.view;
  if (is_empty(view)) return;
  std::int64_t expected = 1;
  for (int i = view.shape.rank() - 1; i >= 0; --i) {
    if (view.shape[i] > 1 && view.strides[i] != expected) {
      refuse(argument.op, std::string(argument.name) + " must be contiguous, got shape " +
                              to_string(view.shape) + " with strides " + to_string(view.strides));
    }
    expected *= std::max<std::int64_t>(view.shape[i], 1);
  }
}

void check_no_self_overlap(const Argument& output) {
  if (is_empty(output.view)) return;
  const SignificantAxes axes(output.view);
  std::int64_t inner = size_of(output.view.dtype);
  for (const Axis& axis : axes) {
    if (axis.stride < inner) {
      refuse(output.op, std::string(output.name) + " must not overlap itself, got shape " +
                            to_string(output.view.shape) + " with strides " +
                            to_string(output.view.strides));
    }
    inner += (axis.extent - 1) * axis.stride;
  }
}

void check_disjoint(const Argument& output, const Argument& other) {
  if (!share_memory(output.view, other.view)) return;
  refuse(output.op, std::string(output.name) + " must not overlap " + other.name +
                        ", got views that share memory");
}

}  // namespace tandem
