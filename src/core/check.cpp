#include "core/check.h"

#include <algorithm>
#include <vector>

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
std::vector<Axis> significant_axes(const TensorView& view) {
  std::vector<Axis> axes;
  for (int i = 0; i < view.shape.rank(); ++i) {
    if (view.shape[i] > 1) axes.push_back({view.shape[i], view.strides[i] * size_of(view.dtype)});
  }
  std::sort(axes.begin(), axes.end(), [](Axis a, Axis b) { return a.stride < b.stride; });
  return axes;
}

/// Bytes from the first to the end of the last element along these axes.
std::int64_t span_bytes(const std::vector<Axis>& axes, std::size_t count, std::int64_t element) {
  std::int64_t bytes = element;
  for (std::size_t i = 0; i < count; ++i) bytes += (axes[i].extent - 1) * axes[i].stride;
  return bytes;
}

/// Whether two views repeat with one common period inside which they are disjoint, as q, k and v
/// slices of one packed buffer are.
bool interleaved_apart(const TensorView& a, const TensorView& b) {
  const auto axes_a = significant_axes(a);
  const auto axes_b = significant_axes(b);
  const std::int64_t element_a = size_of(a.dtype);
  const std::int64_t element_b = size_of(b.dtype);
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
      const std::int64_t inner_a = span_bytes(axes_a, i, element_a);
      const std::int64_t inner_b = span_bytes(axes_b, j, element_b);
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
  const auto axes_a = significant_axes(a);
  const auto axes_b = significant_axes(b);
  const auto begin_a = reinterpret_cast<std::intptr_t>(a.data);
  const auto begin_b = reinterpret_cast<std::intptr_t>(b.data);
  const auto end_a = begin_a + span_bytes(axes_a, axes_a.size(), size_of(a.dtype));
  const auto end_b = begin_b + span_bytes(axes_b, axes_b.size(), size_of(b.dtype));
  return begin_a < end_b && begin_b < end_a && !interleaved_apart(a, b);
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
  const auto axes = significant_axes(output.view);
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
