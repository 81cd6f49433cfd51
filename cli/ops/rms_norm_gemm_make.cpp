// rms_norm_gemm's tensors from a case: the norm's in front of the segments'.
#include <cmath>
#include <string>

#include "cli/calls/arguments.h"
#include "cli/ops/rms_norm_gemm.h"
#include "cli/ops/segments_make.h"
#include "ops/rms_norm_gemm.h"
#include "reference/rms_norm_gemm.h"

namespace tandem::tools {
namespace {

class Maker : public SegmentTensors {
 public:
  using SegmentTensors::SegmentTensors;

  void add_inputs() {
    add_rows();
    fill_rows();
    add_vector("norm_weight", one_.fp32_norm_weight ? real() : dtype_, d_, false);
    const bool wide = one_.values == RowValues::kLarge || one_.values == RowValues::kSmall;
    fill("norm_weight", [=](const RandomStream& numbers, std::int64_t i) {
      const float at = numbers.uniform(i);
      return wide ? 0.1f * std::pow(100.0f, at) : 0.5f + at;
    });
    if (one_.eps) set_.scalars["eps"] = *one_.eps;
    add_weights();
    // why another eps than a call has by default: a call that does not take what it is given shows.
    constexpr double kEpsOfGiven = 0.25;
    if (one_.given_rstd) add_rstd(kEpsOfGiven);
  }

  void add_kept() { add_vector("kept_rstd", real(), M_, true); }

  /// Adds the rstd that a backward is given, where the forward was not.
  void add_rstd_of_forward() {
    if (!one_.given_rstd) add_rstd(one_.eps);
  }

  void add_norm_gradient() {
    add_vector("d_norm_weight", gradient_dtype(), d_, true);
    fill_sum("d_norm_weight");
  }

 private:
  void fill_rows() {
    const float scale = one_.values == RowValues::kLarge   ? 1e4f
                        : one_.values == RowValues::kSmall ? 1e-6f
                                                           : 1.0f;
    const bool zeros = one_.values == RowValues::kZeroRows;
    fill("x", [=, this](const RandomStream& numbers, std::int64_t i) {
      return zeros && i / d_ % 3 == 0 ? 0 : scale * numbers.normal(i);
    });
  }

  void add_rstd(std::optional<double> eps) {
    auto args = host_arguments<RmsNormGemmForwardArgs>(rms_norm_gemm_forward_signature(), set_);
    args.eps = eps;
    const reference::NormedRows rows(args);
    add_vector("rstd", real(), M_, false);
    const NamedTensor& tensor = set_.get("rstd");
    std::byte* const data = set_.buffers[tensor.buffer].data() + tensor.offset;
    for (std::int64_t row = 0; row < M_; ++row) store(tensor.dtype, data, row, rows.rstd[row]);
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
  if (!one.given_rstd) maker.add_kept();
  maker.add_gradients();
  maker.add_norm_gradient();
  return maker.take();
}

}  // namespace tandem::tools
