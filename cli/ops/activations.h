// How a case lays out activations [B,T,heads,dim]: what ops with heads share.
#pragma once

#include <algorithm>
#include <string>
#include <vector>

#include "cli/cases/cases.h"
#include "cli/tensors/tensors.h"

namespace tandem::tools {

/// Returns the strides of an activation of a case.
inline Dims activation_strides(Strides kind, const Dims& shape, bool output) {
  const std::int64_t T = std::max<std::int64_t>(shape[1], 1), heads = shape[2], D = shape[3];
  const auto gaps = [&](std::int64_t head, std::int64_t token, std::int64_t batch) {
    const std::int64_t time_stride = heads * head + token;
    return Dims{T * time_stride + batch, time_stride, head, 1};
  };
  switch (kind) {
    case Strides::kTransposed: return {heads * T * D, D, T * D, 1};
    case Strides::kPadded: return gaps(padded_stride(D, 16), 32, 64);
    case Strides::kOdd: return gaps(D + 3, 5, 7);
    case Strides::kBroadcast:
      if (!output) return {T * D, D, 0, 1};
      [[fallthrough]];
    default: return contiguous_strides(shape);
  }
}

/// Elements that a case's tensors lie off their alignment.
inline std::int64_t shift_of(const Case& one) {
  return one.strides == Strides::kMisaligned || one.strides == Strides::kOdd ? 1 : 0;
}

/// A tensor of several that share a buffer.
struct PackedTensor {
  const char* name;
  Dims shape;
};

/// Makes tensors of equal B and T in one buffer, each row of a token holding all of them.
inline void add_packed(TensorSet& set, DType dtype, const std::vector<PackedTensor>& tensors) {
  std::int64_t width = 0;
  for (const auto& [name, shape] : tensors) width += shape[2] * shape[3];
  const Dims first = tensors.front().shape;
  const std::int64_t T = first[1];
  NamedTensor row{"", dtype, {first[0], T, width}, {T * width, width, 1}, 0, 0, false};
  row.buffer = set.buffers.size();
  set.buffers.emplace_back(2 * kGuardBytes + span_bytes(row));
  std::int64_t offset = kGuardBytes;
  for (const auto& [name, shape] : tensors) {
    set.tensors.push_back(
        {name, dtype, shape, {T * width, width, shape[3], 1}, row.buffer, offset, false});
    offset += shape[2] * shape[3] * size_of(dtype);
  }
}

}  // namespace tandem::tools
