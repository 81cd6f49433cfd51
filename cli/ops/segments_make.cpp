#include "cli/ops/segments_make.h"

#include <cmath>

#include "core/real.h"

namespace tandem::tools {

SegmentMaker::SegmentMaker(const Case& one, DType dtype, std::uint64_t seed)
    : ProductMaker(one, dtype, seed) {
  for (const std::string& text : one.segments) segments_.push_back(*parse_segment(text));
}

void SegmentMaker::add_gradients() {
  add_beside("d_out", false);
  for_each_segment([&](const SegmentCase& segment, std::size_t i) {
    if (segment.unused) return;
    const std::string name = segment_name("d_out", i);
    fill_normal(set_.get(name), set_.buffers, random(name));
  });
  add_matrix("dx", dtype_, M_, d_, true);
  add_stacked(stack_of("d_weight"), gradient_dtype(), true);
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

DType SegmentMaker::real() const { return real_dtype(dtype_); }

void SegmentMaker::add_weights() {
  add_stacked(stack_of("weight"), dtype_, false);
  const float scale = (one_.around ? 0.25f : 1.0f) / std::sqrt(static_cast<float>(d_));
  const auto around = static_cast<float>(one_.around.value_or(0));
  const float spread = one_.around ? 0 : 0.5f;
  for_each_segment([&](const SegmentCase& segment, std::size_t i) {
    fill(segment_name("weight", i), [=](float normal, std::int64_t) { return scale * normal; });
    if (!segment.bias && !segment.bias_fp32) return;
    const std::string name = segment_name("bias", i);
    add_vector(name, segment.bias ? dtype_ : real(), segment.columns, false);
    fill(name, [=](float normal, std::int64_t) { return around + spread * normal; });
  });
}

void SegmentMaker::fill_sum(const std::string& name) {
  if (one_.accumulate && set_.find(name)) {
    fill_normal(set_.get(name), set_.buffers, random(name));
  }
}

SegmentMaker::Stack SegmentMaker::stack_of(const char* stem) const {
  Stack stack;
  for (std::size_t i = 0; i < segments_.size(); ++i) {
    stack.emplace_back(segment_name(stem, i), segments_[i].columns);
  }
  return stack;
}

/// Adds a tensor [M,columns] of each segment: with packed strides those of one dtype are columns of
/// one matrix.
void SegmentMaker::add_beside(const char* stem, bool output) {
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
