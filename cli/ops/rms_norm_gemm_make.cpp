// rms_norm_gemm's tensors from a case: the norm's in front of the segments'.
#include <cstdint>

#include "cli/ops/rms_norm_gemm.h"
#include "cli/ops/segments_make.h"

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
  }

  void add_kept() { add_vector("kept_rstd", real(), M_, true); }

  /// Adds the rstd that a backward is given, where the forward was not.
  void add_rstd_of_forward() {
    if (!one_.rstd_given) add_rstd(one_.eps.value_or(kEps));
  }

  void add_norm_gradient() {
    add_vector("d_norm_weight", gradient_dtype(), d_, true);
    fill_sum("d_norm_weight");
  }
};

}  // namespace

TensorSet make_rms_norm_gemm(const Case& one, DType dtype, std::uint64_t seed) {
  Maker maker(one, dtype, seed);
  maker.add_inputs();
  maker.add_outputs();
  if (one.kept == Kept::kYes) maker.add_kept();
  return maker.take();
}

TensorSet make_rms_norm_gemm_backward(const Case& one, DType dtype, std::uint64_t seed) {
  Maker maker(one, dtype, seed);
  maker.add_inputs();
  maker.add_rstd_of_forward();
  maker.add_gradients();
  maker.add_norm_gradient();
  return maker.take();
}

TensorSet make_rms_norm_gemm_both(const Case& one, DType dtype, std::uint64_t seed) {
  Maker maker(one, dtype, seed);
  maker.add_inputs();
  maker.add_outputs();
  if (!one.rstd_given) maker.add_kept();
  maker.add_gradients();
  maker.add_norm_gradient();
  return maker.take();
}

}  // namespace tandem::tools
