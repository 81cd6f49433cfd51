#include "cli/ops/segments_make.h"

#include <cmath>

#include "core/real.h"

namespace tandem::tools {

SegmentTensors::SegmentTensors(const Case& one, DType dtype, std::uint64_t seed)
    : one_(one), dtype_(dtype), seed_(seed + one.seed), M_(one.axis("M")), d_(one.axis("d")) {
  for (const std::string& text : one.segments) segments_.push_back(*parse_segment(text));
}

void SegmentTensors::add_rows() { add_matrix("x", dtype_, M_, d_, false); }

void SegmentTensors::add_weights() {
  add_stacked("weight", dtype_, false);
  const float scale = (one_.around ? 0.25f : 1.0f) / std::sqrt(static_cast<float>(d_));
  const auto around = static_cast<float>(one_.around.value_or(0));
  const float spread = one_.around ? 0 : 0.5f;
  for_each_segment([&](const SegmentCase& segment, std::size_t i) {
    fill(segment_name("weight", i),
         [=](const RandomStream& numbers, std::int64_t at) { return scale * numbers.normal(at); });
    if (!segment.bias && !segment.bias_fp32) return;
    const std::string name = segment_name("bias", i);
    add_vector(name, segment.bias ? dtype_ : real(), segment.columns, false);
    fill(name, [=](const RandomStream& numbers, std::int64_t at) {
      return around + spread * numbers.normal(at);
    });
  });
}

void SegmentTensors::add_outputs() { add_beside("out", true); }

void SegmentTensors::add_gradients() {
  add_beside("d_out", false);
  for_each_segment([&](const SegmentCase& segment, std::size_t i) {
    if (segment.unused) return;
    const std::string name = segment_name("d_out", i);
    fill_normal(set_.get(name), set_.buffers, random(name));
  });
  add_matrix("dx", dtype_, M_, d_, true);
  add_stacked("d_weight", gradient_dtype(), true);
  for_each_segment([&](const SegmentCase& segment, std::size_t i) {
    const std::string name = segment_name("d_bias", i);
    if (set_.find(segment_name("bias", i))) {
      add_vector(name, gradient_dtype(), segment.columns, true);
    }
    fill_sum(segment_name("d_weight", i));
    fill_sum(name);
  });
  set_.scalars["accumulate"] = one_.accumulate;
}

DType SegmentTensors::real() const { return real_dtype(dtype_); }

std::int64_t SegmentTensors::shift() const {
  return one_.strides == Strides::kMisaligned || one_.strides == Strides::kOdd ? 1 : 0;
}

void SegmentTensors::add_matrix(const std::string& name, DType dtype, std::int64_t rows,
                                std::int64_t columns, bool output) {
  std::int64_t stride = columns;
  const bool is_token = name == "x" || name.starts_with("d_out");
  if (one_.strides == Strides::kPadded) stride = padded_stride(columns, 32);
  if (one_.strides == Strides::kOdd) stride = columns + 5;
  if (one_.strides == Strides::kBroadcast && is_token) stride = 0;
  add_tensor(set_, name, dtype, {rows, columns}, {stride, 1}, output, shift());
}

void SegmentTensors::add_vector(const std::string& name, DType dtype, std::int64_t length,
                                bool output) {
  add_tensor(set_, name, dtype, {length}, {1}, output, shift());
}

void SegmentTensors::fill_sum(const std::string& name) {
  if (one_.accumulate && set_.find(name)) {
    fill_normal(set_.get(name), set_.buffers, random(name));
  }
}

/// Adds a tensor [columns,d] of each segment: with packed strides rows of one matrix.
void SegmentTensors::add_stacked(const char* stem, DType dtype, bool output) {
  std::int64_t rows = 0;
  for (const SegmentCase& segment : segments_) rows += segment.columns;
  const NamedTensor all{stem, dtype, {rows, d_}, {d_, 1}, set_.buffers.size(), 0, output};
  std::int64_t offset = kGuardBytes;
  const bool packed = one_.strides == Strides::kPacked;
  if (packed) set_.buffers.emplace_back(2 * kGuardBytes + span_bytes(all));
  for_each_segment([&](const SegmentCase& segment, std::size_t i) {
    const std::string name = segment_name(stem, i);
    if (!packed) return add_matrix(name, dtype, segment.columns, d_, output);
    set_.tensors.push_back(
        {name, dtype, {segment.columns, d_}, {d_, 1}, all.buffer, offset, output});
    offset += segment.columns * d_ * size_of(dtype);
  });
}

/// Adds a tensor [M,columns] of each segment: with packed strides those of one dtype are columns of
/// one matrix.
void SegmentTensors::add_beside(const char* stem, bool output) {
  for (const bool fp32 : {false, true}) {
    std::int64_t columns = 0;
    const auto is_in = [&](const SegmentCase& segment) {
      return segment.fp32 == fp32 && (output || !segment.unused);
    };
    for (const SegmentCase& segment : segments_) columns += is_in(segment) ? segment.columns : 0;
    const DType dtype = fp32 ? real() : dtype_;
    const NamedTensor all{stem, dtype, {M_, columns}, {columns, 1}, set_.buffers.size(), 0, false};
    std::int64_t offset = kGuardBytes;
    const bool packed = one_.strides == Strides::kPacked && columns > 0;
    if (packed) set_.buffers.emplace_back(2 * kGuardBytes + span_bytes(all));
    for_each_segment([&](const SegmentCase& segment, std::size_t i) {
      if (!is_in(segment)) return;
      const std::string name = segment_name(stem, i);
      if (!packed) return add_matrix(name, dtype, M_, segment.columns, output);
      set_.tensors.push_back(
          {name, dtype, {M_, segment.columns}, all.strides, all.buffer, offset, output});
      offset += segment.columns * size_of(dtype);
    });
  }
}

}  // namespace tandem::tools
