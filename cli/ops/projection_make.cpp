// projection's tensors from a case: random inputs, and what a forward keeps.
#include <string>

#include "cli/calls/arguments.h"
#include "cli/ops/projection.h"
#include "cli/ops/segments_make.h"
#include "ops/projection.h"

namespace tandem::tools {
namespace {

class Maker : public SegmentMaker {
 public:
  using SegmentMaker::SegmentMaker;

  void add_inputs() {
    add_matrix("x", dtype_, M_, d_, false);
    fill_normal(set_.get("x"), set_.buffers, random("x"));
    add_weights();
    for_each_segment([&](const SegmentCase& segment, std::size_t i) { add_numbers(segment, i); });
  }

  void add_kept() {
    for_each_segment([&](const SegmentCase& segment, std::size_t i) {
      if (segment.has_slope()) {
        add_matrix(segment_name("slope", i), out_dtype(segment), M_, segment.columns, true);
      }
      if (segment.normalizes()) {
        add_matrix(segment_name("inverse_norm", i), real(), M_, segment.heads(), true);
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

 private:
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
};

}  // namespace

TensorSet make_projection(const Case& one, DType dtype, std::uint64_t seed) {
  Maker maker(one, dtype, seed);
  maker.add_inputs();
  maker.add_outputs();
  if (one.kept == Kept::kYes) maker.add_kept();
  return maker.take();
}

TensorSet make_projection_backward(const Case& one, DType dtype, std::uint64_t seed) {
  Maker maker(one, dtype, seed);
  maker.add_inputs();
  maker.add_outputs();
  maker.add_kept();
  maker.keep_outputs();
  maker.add_gradients();
  return maker.take();
}

TensorSet make_projection_both(const Case& one, DType dtype, std::uint64_t seed) {
  Maker maker(one, dtype, seed);
  maker.add_inputs();
  maker.add_outputs();
  maker.add_kept();
  maker.add_gradients();
  return maker.take();
}

}  // namespace tandem::tools
