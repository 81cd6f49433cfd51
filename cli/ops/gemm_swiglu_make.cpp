// gemm_swiglu's tensors from a case: layouts, random inputs, and what a forward keeps.
#include <algorithm>
#include <cmath>
#include <string>

#include "cli/calls/arguments.h"
#include "cli/ops/gemm_swiglu.h"
#include "cli/ops/product.h"
#include "core/real.h"
#include "ops/gemm_swiglu.h"

namespace tandem::tools {
namespace {

/// Adds the tensors of a case, laid out as it says.
class Maker : public ProductMaker {
 public:
  Maker(const Case& one, DType dtype, std::uint64_t seed)
      : ProductMaker(one, dtype, seed), F_(one.axis("F")) {}

  void add_inputs() {
    add_matrix("x", dtype_, M_, d_, false);
    add_stacked({{"gate_weight", F_}, {"up_weight", F_}}, dtype_, false);
    fill_x();
    fill_weight("gate_weight", static_cast<float>(one_.around.value_or(0)));
    fill_weight("up_weight", 0);
    const auto activation = std::ranges::find(kGateActivations, one_.activation);
    set_.scalars["activation"] = static_cast<double>(activation - kGateActivations.begin());
    if (normalizes()) add_norm();
  }

  void add_outputs(bool kept) {
    add_matrix("out", dtype_, M_, F_, true);
    if (!kept) return;
    add_matrix("gate_slope", dtype_, M_, F_, true);
    add_matrix("up_slope", dtype_, M_, F_, true);
    if (normalizes() && !one_.rstd_given) add_vector("kept_rstd", real_dtype(dtype_), M_, true);
  }

  /// Runs the forward, whose outputs become inputs. why the CPU's and not the definition: it takes
  /// minutes of the large cases. What it keeps wrong, the gradients show.
  void keep_outputs() {
    const Signature& forward = gemm_swiglu_forward_signature();
    forward.run(arguments(forward, set_, host_bases(set_), Device::cpu()).get(), {}, {});
    std::erase_if(set_.tensors, [](const NamedTensor& tensor) { return tensor.name == "out"; });
    for (NamedTensor& tensor : set_.tensors) {
      tensor.output = false;
      if (tensor.name == "kept_rstd") tensor.name = "rstd";
    }
  }

  void add_gradients() {
    add_matrix("d_out", dtype_, M_, F_, false);
    fill_normal(set_.get("d_out"), set_.buffers, random("d_out"));
    add_matrix("dx", dtype_, M_, d_, true);
    const DType dtype = one_.fp32_gradients ? real_dtype(dtype_) : dtype_;
    add_stacked({{"d_gate_weight", F_}, {"d_up_weight", F_}}, dtype, true);
    if (normalizes()) add_vector("d_norm_weight", dtype, d_, true);
    set_.scalars["accumulate"] = one_.accumulate;
    if (!one_.accumulate) return;
    for (const char* sum : {"d_gate_weight", "d_up_weight", "d_norm_weight"}) {
      if (set_.find(sum)) fill_normal(set_.get(sum), set_.buffers, random(sum));
    }
  }

 private:
  bool normalizes() const { return one_.norm != Norm::kNone; }

  /// Whether values are multiples of a power of two, few enough that sums of their products are
  /// exact: on which side of a relu's edge a sum lies must not depend on its order.
  bool exact() const { return one_.activation == std::string("relu"); }

  static float to_quarter(float value) { return std::round(4 * value) / 4; }

  void fill_x() {
    fill("x", [this](float normal, std::int64_t i) {
      if (one_.around && i % d_ == 0) return 1.0f;  // which the weights' first column meets
      if (exact()) normal = to_quarter(normal);
      return row_value(normal, i);
    });
  }

  /// Fills a weight such that x W^T is of N(0,1), or close to what `around` says.
  void fill_weight(const std::string& name, float around) {
    float scale = (one_.around ? 0.25f : 1.0f) / std::sqrt(static_cast<float>(d_));
    if (exact()) scale = std::exp2(std::round(std::log2(scale)));
    fill(name, [=, this](float normal, std::int64_t i) {
      if (one_.around && i % d_ == 0) return around;
      return scale * (exact() ? to_quarter(normal) : normal);
    });
  }

  void add_norm() {
    add_norm_weight();
    if (one_.rstd_given) return add_rstd(kNormEps);
    set_.scalars["eps"] = kNormEps;
  }

  std::int64_t F_;
};

}  // namespace

TensorSet make_gemm_swiglu(const Case& one, DType dtype, std::uint64_t seed) {
  Maker maker(one, dtype, seed);
  maker.add_inputs();
  maker.add_outputs(one.kept == Kept::kYes);
  return maker.take();
}

TensorSet make_gemm_swiglu_backward(const Case& one, DType dtype, std::uint64_t seed) {
  Maker maker(one, dtype, seed);
  maker.add_inputs();
  maker.add_outputs(true);
  maker.keep_outputs();
  maker.add_gradients();
  return maker.take();
}

TensorSet make_gemm_swiglu_both(const Case& one, DType dtype, std::uint64_t seed) {
  Maker maker(one, dtype, seed);
  maker.add_inputs();
  maker.add_outputs(true);
  maker.add_gradients();
  return maker.take();
}

}  // namespace tandem::tools
