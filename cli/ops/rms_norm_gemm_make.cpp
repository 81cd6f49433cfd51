// rms_norm_gemm's tensors from a case: the norm's in front of the segments'.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

#include "cli/calls/arguments.h"
#include "cli/ops/rms_norm_gemm.h"
#include "cli/ops/segments_make.h"
#include "ops/rms_norm_gemm.h"

namespace tandem::tools {
namespace {

constexpr double kEps = 1e-6;  // a call's by default

class Maker : public SegmentMaker {
 public:
  using SegmentMaker::SegmentMaker;

  void add_inputs() {
    add_matrix("x", dtype_, M_, d_, false);
    fill("x", [this](float normal, std::int64_t i) { return row_value(normal, i); });
    add_norm_weight();
    if (one_.eps) set_.scalars["eps"] = *one_.eps;
    add_weights();
    // why another eps than a call's: one that does not take what it is given shows.
    constexpr double kEpsOfGiven = 0.25;
    if (one_.rstd_given) add_rstd(kEpsOfGiven);
    for_each_segment([&](const SegmentCase& segment, std::size_t i) { add_heads(segment, i); });
    const auto rotates = std::ranges::find_if(segments_, &SegmentCase::rope);
    if (rotates != segments_.end()) add_rope(static_cast<std::int64_t>(rotates->constants[0]));
  }

  void add_kept() { add_vector("kept_rstd", real(), M_, true); }
  void add_kept_of_heads() {
    for_each_segment([&](const SegmentCase& segment, std::size_t i) {
      if (!segment.has_head_norm()) return;
      add_matrix(segment_name("pre_norm", i), dtype_, M_, segment.columns, true);
      add_matrix(segment_name("head_rstd", i), real(), M_, segment.heads(), true);
    });
  }
  /// Runs the forward, whose outputs become inputs where the backward takes them. why the CPU's
  /// and not the definition: it takes minutes of the large cases.
  void keep_outputs() {
    if (std::ranges::none_of(segments_, &SegmentCase::has_head_norm)) return;
    add_outputs();
    add_kept_of_heads();
    const Signature& forward = rms_norm_gemm_forward_signature();
    forward.run(arguments(forward, set_, host_bases(set_), Device::cpu()).get(), {}, {});
    std::erase_if(set_.tensors,
                  [](const NamedTensor& tensor) { return tensor.name.starts_with("out"); });
    for (NamedTensor& tensor : set_.tensors) tensor.output = false;
  }

  /// Adds the rstd that a backward is given, where the forward was not.
  void add_rstd_of_forward() {
    if (!one_.rstd_given) add_rstd(one_.eps.value_or(kEps));
  }

  void add_norm_gradients() {
    add_vector("d_norm_weight", gradient_dtype(), d_, true);
    fill_sum("d_norm_weight");
    for_each_segment([&](const SegmentCase& segment, std::size_t i) {
      if (!segment.has_head_norm()) return;
      const std::string name = segment_name("d_head_norm_weight", i);
      add_vector(name, gradient_dtype(), static_cast<std::int64_t>(segment.constants[0]), true);
      fill_sum(name);
    });
  }

 private:
  void add_heads(const SegmentCase& segment, std::size_t i) {
    if (!segment.has_heads()) return;
    set_.scalars[segment_name("head_width", i)] = segment.constants[0];
    if (segment.rope) set_.scalars[segment_name("rotates", i)] = 1;
    if (!segment.has_head_norm()) return;
    if (one_.head_eps) set_.scalars[segment_name("head_eps", i)] = *one_.head_eps;
    const std::string name = segment_name("head_norm_weight", i);
    add_vector(name, segment.norm ? dtype_ : real(),
               static_cast<std::int64_t>(segment.constants[0]), false);
    fill(name, [](float normal, std::int64_t) { return 1 + 0.25f * normal; });
  }

  /// Adds what tells of positions, and tables with rows for all of them and some more.
  void add_rope(std::int64_t head_width) {
    const std::int64_t pairs = (one_.rope_width != 0 ? one_.rope_width : head_width) / 2;
    const std::int64_t positions = M_ + 3;
    const DType dtype = one_.rope_fp32 ? real() : dtype_;
    for (const bool cosines : {true, false}) {
      const char* const name = cosines ? "rope_cos" : "rope_sin";
      add_matrix(name, dtype, positions, pairs, false);
      fill(name, [&](float, std::int64_t i) {
        const double frequency =
            std::pow(1e4, -static_cast<double>(i % pairs) / static_cast<double>(pairs));
        const double angle = static_cast<double>(i / pairs) * frequency;
        return static_cast<float>(cosines ? std::cos(angle) : std::sin(angle));
      });
    }
    if (one_.rope_interleaved) set_.scalars["rope_layout"] = 1;
    if (one_.rope == "length" && M_ > 0) {
      set_.scalars["rope_length"] = static_cast<double>(M_ % 2 == 0 ? M_ / 2 : M_);
    }
    if (one_.rope == "positions") {
      add_tensor(set_, "rope_positions", DType::kInt32, {M_}, {1}, false, shift());
      const RandomStream uniform = random("rope_positions");
      fill("rope_positions", [&](float, std::int64_t i) {
        // One in eight leaves the tables: it is clamped.
        const auto wide = static_cast<float>(positions) * (i % 8 == 7 ? 3.0f : 1.0f);
        return std::floor(wide * (uniform.uniform(i) - (i % 8 == 7 ? 0.5f : 0.0f)));
      });
    }
    if (one_.rope == "cu_seqlens") {
      // One sequence is empty; the first and the last rows are in none.
      const std::int64_t begin = std::min<std::int64_t>(M_, 2);
      const std::vector<std::int64_t> offsets = {begin, std::max(begin, M_ / 5),
                                                 std::max(begin, M_ / 5), std::max(begin, M_ / 2),
                                                 std::max(begin, M_ - 1)};
      add_tensor(set_, "cu_seqlens", DType::kInt32, {std::ssize(offsets)}, {1}, false, shift());
      fill("cu_seqlens", [&](float, std::int64_t i) { return static_cast<float>(offsets[i]); });
    }
  }
};

}  // namespace

TensorSet make_rms_norm_gemm(const Case& one, DType dtype, std::uint64_t seed) {
  Maker maker(one, dtype, seed);
  maker.add_inputs();
  maker.add_outputs();
  if (one.kept == Kept::kYes) {
    maker.add_kept();
    maker.add_kept_of_heads();
  }
  return maker.take();
}

TensorSet make_rms_norm_gemm_backward(const Case& one, DType dtype, std::uint64_t seed) {
  Maker maker(one, dtype, seed);
  maker.add_inputs();
  maker.keep_outputs();
  maker.add_rstd_of_forward();
  maker.add_gradients();
  maker.add_norm_gradients();
  return maker.take();
}

TensorSet make_rms_norm_gemm_both(const Case& one, DType dtype, std::uint64_t seed) {
  Maker maker(one, dtype, seed);
  maker.add_inputs();
  maker.add_outputs();
  if (!one.rstd_given) maker.add_kept();
  maker.add_kept_of_heads();
  maker.add_gradients();
  maker.add_norm_gradients();
  return maker.take();
}

}  // namespace tandem::tools
