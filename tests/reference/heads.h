// The fp64 definition of what follows a product in each head: a weighted RMS norm and a rotation,
// and their gradients, as plain as the formula. Trusted as that is:
// tests/cpp/test_heads_definition.cpp.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <optional>
#include <vector>

#include "reference/element.h"
#include "tandem/ops/rms_norm_gemm.h"
#include "tandem/tensor.h"

namespace tandem::reference {

/// Which row of the tables a row of a call takes.
template <class Args>
std::int64_t rope_position(const Args& args, std::int64_t row) {
  std::int64_t position = row;
  if (args.rope_length) position = row % *args.rope_length;
  if (args.rope_positions) {
    position = static_cast<const std::int32_t*>(args.rope_positions->data)[row];
  }
  if (args.cu_seqlens) {
    for (std::int64_t i = 0; i < args.cu_seqlens->shape[0]; ++i) {
      const std::int64_t begin = static_cast<const std::int32_t*>(args.cu_seqlens->data)[i];
      if (begin <= row) position = row - begin;
    }
  }
  return std::clamp<std::int64_t>(position, 0, args.rope_cos->shape[0] - 1);
}

/// Rotates the pairs of a head by the angles of a row of a call, whose cosines and sines are given.
inline std::vector<double> rotate_head(const std::vector<double>& head,
                                       const std::vector<double>& cos,
                                       const std::vector<double>& sin, RopeLayout layout) {
  std::vector<double> out = head;
  for (std::size_t j = 0; j < cos.size(); ++j) {
    const bool halves = layout == RopeLayout::kRotateHalf;
    const std::size_t a = halves ? j : 2 * j, b = halves ? j + cos.size() : 2 * j + 1;
    out[a] = head[a] * cos[j] - head[b] * sin[j];
    out[b] = head[a] * sin[j] + head[b] * cos[j];
  }
  return out;
}

/// What follows the product of a segment, in the heads of one row.
class HeadsOfRow {
 public:
  /// `Segment` as the forward or the backward has it.
  template <class Args, class Segment>
  HeadsOfRow(const Args& args, const Segment& segment, double eps, std::int64_t row)
      : width_(segment.head_width.value_or(0)), eps_(eps), layout_(args.rope_layout) {
    if (segment.head_norm_weight) weight_ = read_vector(*segment.head_norm_weight);
    if (!segment.rotates) return;
    const std::int64_t position = rope_position(args, row);
    cos_ = read_row(*args.rope_cos, position, 0, args.rope_cos->shape[1]);
    sin_ = read_row(*args.rope_sin, position, 0, args.rope_sin->shape[1]);
  }

  bool normalizes() const { return !weight_.empty(); }

  /// 1 / sqrt(mean of z^2 + eps) of each head.
  std::vector<double> rstd(const std::vector<double>& z) const {
    std::vector<double> all;
    for (std::size_t first = 0; first < z.size(); first += width_) {
      double sum = 0;
      for (std::size_t j = first; j < first + width_; ++j) sum += z[j] * z[j];
      all.push_back(1 / std::sqrt(sum / static_cast<double>(width_) + eps_));
    }
    return all;
  }

  std::vector<double> out(const std::vector<double>& z) const {
    std::vector<double> y = z;
    if (normalizes()) {
      const std::vector<double> scale = rstd(z);
      for (std::size_t j = 0; j < z.size(); ++j) y[j] *= scale[j / width_] * weight_[j % width_];
    }
    return rotated(y, sin_);
  }

  /// The gradient by what is rotated: the rotation is orthogonal, or its tables' transpose.
  std::vector<double> dy(const std::vector<double>& d_out) const {
    std::vector<double> back = sin_;
    for (double& value : back) value = -value;
    return rotated(d_out, back);
  }

  /// The gradient by z.
  std::vector<double> dz(const std::vector<double>& z, const std::vector<double>& d_out) const {
    return dz(z, rstd(z), d_out);
  }
  /// The same with each head's rstd as it is given.
  std::vector<double> dz(const std::vector<double>& z, const std::vector<double>& scale,
                         const std::vector<double>& d_out) const {
    std::vector<double> d = dy(d_out);
    if (!normalizes()) return d;
    for (std::size_t first = 0; first < z.size(); first += width_) {
      const double r = scale[first / width_];
      double mean = 0;
      for (std::size_t j = 0; j < width_; ++j) {
        d[first + j] *= weight_[j];
        mean += d[first + j] * z[first + j] * r / static_cast<double>(width_);
      }
      for (std::size_t j = first; j < first + width_; ++j) d[j] = r * (d[j] - z[j] * r * mean);
    }
    return d;
  }

 private:
  std::vector<double> rotated(const std::vector<double>& y, const std::vector<double>& sin) const {
    if (cos_.empty()) return y;
    std::vector<double> out;
    for (std::size_t first = 0; first < y.size(); first += width_) {
      const auto begin = y.begin() + static_cast<std::ptrdiff_t>(first);
      const std::vector<double> head =
          rotate_head({begin, begin + static_cast<std::ptrdiff_t>(width_)}, cos_, sin, layout_);
      out.insert(out.end(), head.begin(), head.end());
    }
    return out;
  }

  std::size_t width_;
  double eps_;
  RopeLayout layout_;
  std::vector<double> weight_;     // [width], none without a norm
  std::vector<double> cos_, sin_;  // of the row, none where nothing rotates
};

}  // namespace tandem::reference
