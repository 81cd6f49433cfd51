// projection's tensors from a case: layouts, random inputs, and what a forward keeps.
#include <algorithm>
#include <cmath>
#include <optional>
#include <string>
#include <vector>

#include "cli/calls/arguments.h"
#include "cli/ops/product.h"
#include "cli/ops/projection.h"
#include "core/real.h"
#include "ops/projection.h"

namespace tandem::tools {
namespace {

class Maker : public ProductMaker {
 public:
  Maker(const Case& one, DType dtype, std::uint64_t seed) : ProductMaker(one, dtype, seed) {
    for (const std::string& text : one.segments) segments_.push_back(*parse_segment(text));
  }

  void add_inputs() {
    add_matrix("x", dtype_, M_, d_, false);
    fill_normal(set_.get("x"), set_.buffers, random("x"));
    add_stacked(stack_of("weight"), dtype_, false);
    for_each_segment([&](const SegmentCase& segment, std::size_t i) {
      fill_weight(segment_name("weight", i));
      add_numbers(segment, i);
      if (!segment.bias && !segment.bias_fp32) return;
      const std::string name = segment_name("bias", i);
      add_tensor(set_, name, segment.bias ? dtype_ : real_dtype(dtype_), {segment.columns}, {1},
                 false, shift());
      fill_bias(name);
    });
  }

  void add_outputs(bool kept) {
    add_beside("out", true);
    for_each_segment([&](const SegmentCase& segment, std::size_t i) {
      if (!kept) return;
      if (segment.has_slope()) {
        add_matrix(segment_name("slope", i), out_dtype(segment), M_, segment.columns, true);
      }
      if (segment.normalizes()) {
        add_matrix(segment_name("inverse_norm", i), real_dtype(dtype_), M_, segment.heads(), true);
      }
    });
  }

  /// Runs the forward, whose outputs become inputs where the backward takes them. why the CPU's
  /// and not the definition: it takes minutes of the large cases. What it keeps wrong, the
  /// gradients show.
  void keep_outputs() {
    const Signature& forward = projection_forward_signature();
    forward.run(arguments(forward, set_, host_bases(set_), Device::cpu()).get(), {}, {});
    std::erase_if(set_.tensors, [&](NamedTensor& tensor) {
      if (!tensor.output) return false;
      tensor.output = false;
      const bool is_out = tensor.name.starts_with("out");
      return is_out && !segments_[std::stoul(tensor.name.substr(3))].normalizes();
    });
  }

  void add_gradients() {
    add_beside("d_out", false);
    for_each_segment([&](const SegmentCase& segment, std::size_t i) {
      if (segment.unused) return;
      const std::string name = segment_name("d_out", i);
      fill_normal(set_.get(name), set_.buffers, random(name));
    });
    add_matrix("dx", dtype_, M_, d_, true);
    const DType dtype = one_.fp32_gradients ? real_dtype(dtype_) : dtype_;
    add_stacked(stack_of("d_weight"), dtype, true);
    for_each_segment([&](const SegmentCase& segment, std::size_t i) {
      const std::string name = segment_name("d_bias", i);
      if (set_.find(segment_name("bias", i))) {
        add_tensor(set_, name, dtype, {segment.columns}, {1}, true, shift());
      }
      if (!one_.accumulate) return;
      for (const std::string& sum : {segment_name("d_weight", i), name}) {
        if (set_.find(sum)) fill_normal(set_.get(sum), set_.buffers, random(sum));
      }
    });
    set_.scalars["accumulate"] = one_.accumulate;
  }

 private:
  template <class Body>
  void for_each_segment(const Body& body) {
    for (std::size_t i = 0; i < segments_.size(); ++i) body(segments_[i], i);
  }

  DType out_dtype(const SegmentCase& segment) const {
    return segment.fp32 ? real_dtype(dtype_) : dtype_;
  }
  /// A tensor [columns,d] of each segment.
  Stack stack_of(const char* stem) {
    Stack stack;
    for_each_segment([&](const SegmentCase& segment, std::size_t i) {
      stack.emplace_back(segment_name(stem, i), segment.columns);
    });
    return stack;
  }

  /// Adds a tensor [M,columns] of each segment: with packed strides those of one dtype are columns
  /// of one matrix.
  void add_beside(const char* stem, bool output) {
    for (const bool fp32 : {false, true}) {
      std::int64_t columns = 0;
      const auto is_in = [&](const SegmentCase& segment) {
        return segment.fp32 == fp32 && (output || !segment.unused);
      };
      for (const SegmentCase& segment : segments_) columns += is_in(segment) ? segment.columns : 0;
      const DType dtype = fp32 ? real_dtype(dtype_) : dtype_;
      const NamedTensor all{stem, dtype, {M_, columns}, {columns, 1}, set_.buffers.size(),
                            0,    false};
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

  void add_numbers(const SegmentCase& segment, std::size_t i) {
    set_.scalars[segment_name("activation", i)] = static_cast<double>(segment.activation);
    const auto constant = [&](const char* stem, std::size_t place) {
      if (place < segment.constants.size()) {
        set_.scalars[segment_name(stem, i)] = segment.constants[place];
      }
    };
    switch (segment.activation) {
      case Activation::kLogSigmoid: return constant("divisor", 0);
      case Activation::kSoftplus: return constant("min", 0), constant("max", 1);
      case Activation::kL2Normalize: return constant("head_width", 0);
      default: return;
    }
  }

  /// Fills a weight such that x W^T is of N(0,1), or close to what `around` says.
  void fill_weight(const std::string& name) {
    const float scale = (one_.around ? 0.25f : 1.0f) / std::sqrt(static_cast<float>(d_));
    fill(name, [scale](float normal, std::int64_t) { return scale * normal; });
  }

  void fill_bias(const std::string& name) {
    const auto around = static_cast<float>(one_.around.value_or(0));
    const float spread = one_.around ? 0 : 0.5f;
    fill(name, [=](float normal, std::int64_t) { return around + spread * normal; });
  }

  std::vector<SegmentCase> segments_;
};

}  // namespace

TensorSet make_projection(const Case& one, DType dtype, std::uint64_t seed) {
  Maker maker(one, dtype, seed);
  maker.add_inputs();
  maker.add_outputs(one.kept == Kept::kYes);
  return maker.take();
}

TensorSet make_projection_backward(const Case& one, DType dtype, std::uint64_t seed) {
  Maker maker(one, dtype, seed);
  maker.add_inputs();
  maker.add_outputs(true);
  maker.keep_outputs();
  maker.add_gradients();
  return maker.take();
}

TensorSet make_projection_both(const Case& one, DType dtype, std::uint64_t seed) {
  Maker maker(one, dtype, seed);
  maker.add_inputs();
  maker.add_outputs(true);
  maker.add_gradients();
  return maker.take();
}

}  // namespace tandem::tools
