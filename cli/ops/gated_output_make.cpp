// gated_output's tensors from a case: layouts, random inputs, and what a forward keeps.
#include <algorithm>
#include <cmath>
#include <string>

#include "cli/calls/arguments.h"
#include "cli/ops/gated_output.h"
#include "cli/ops/product.h"
#include "core/real.h"
#include "ops/gated_output.h"

namespace tandem::tools {
namespace {

/// Adds the tensors of a case, laid out as it says.
class Maker : public ProductMaker {
 public:
  Maker(const Case& one, DType dtype, std::uint64_t seed)
      : ProductMaker(one, dtype, seed), d_in_(one.axis("d_in")) {}

  void add_inputs() {
    add_beside("o", "gate", false);
    fill("o", [this](float normal, std::int64_t i) { return row_value(normal, i / d_in_ * d_); });
    if (gates()) {
      fill_with_normal("gate");
      const auto gate = std::ranges::find(kOutputGates, one_.output_gate);
      set_.scalars["gate_activation"] = static_cast<double>(gate - kOutputGates.begin());
    }
    if (groups()) add_group_norm();
    add_matrix("weight", dtype_, d_, d_in_, false);
    const float scale = 1 / std::sqrt(static_cast<float>(d_in_));
    fill("weight", [=](float normal, std::int64_t) { return scale * normal; });
    if (one_.bias != Norm::kNone) {
      add_vector("bias", dtype_of(one_.bias), d_, false);
      fill_with_normal("bias");
    }
    if (one_.residual) {
      add_matrix("residual", dtype_, M_, d_, false);
      // As large as the row's product.
      fill("residual", [this](float normal, std::int64_t i) {
        return groups() ? normal : row_value(normal, i);
      });
    }
    if (normalizes()) add_norm();
  }

  void add_outputs(bool kept) {
    add_matrix("out", dtype_, M_, d_, true);
    if (normalizes() && (kept || one_.sum)) add_matrix("sum", dtype_, M_, d_, true);
    if (!kept) return;
    if (centers()) add_vector("mean", real_dtype(dtype_), M_, true);
    if (normalizes()) add_vector("rstd", real_dtype(dtype_), M_, true);
    if ((gates() || groups()) && !one_.gated_again) add_matrix("gated", dtype_, M_, d_in_, true);
    if (groups()) {
      add_matrix("group_rstd", real_dtype(dtype_), M_, d_in_ / one_.group_width, true);
    }
  }

  /// Runs the forward, whose outputs become inputs. why the CPU's and not the definition: it takes
  /// minutes of the large cases. What it keeps wrong, the gradients show, but not the sum, of which
  /// a backward is the gradient: what that was made of is left out.
  void keep_outputs() {
    const Signature& forward = gated_output_forward_signature();
    forward.run(arguments(forward, set_, host_bases(set_), Device::cpu()).get(), {}, {});
    std::erase_if(set_.tensors, [](const NamedTensor& tensor) {
      return tensor.name == "out" || tensor.name == "residual";
    });
    for (NamedTensor& tensor : set_.tensors) tensor.output = false;
  }

  void add_gradients() {
    add_matrix("d_out", dtype_, M_, d_, false);
    fill_with_normal("d_out");
    if (one_.sum) {
      add_matrix("d_sum", dtype_, M_, d_, false);
      fill_with_normal("d_sum");
    }
    add_beside("d_o", "d_gate", true);
    if (one_.residual) add_matrix("d_residual", dtype_, M_, d_, true);
    const DType dtype = one_.fp32_gradients ? real_dtype(dtype_) : dtype_;
    add_matrix("d_weight", dtype, d_, d_in_, true);
    set_.scalars["accumulate"] = one_.accumulate;
    if (one_.accumulate) fill_with_normal("d_weight");
    for (const char* input : {"bias", "group_norm_weight", "norm_weight", "norm_bias"}) {
      const NamedTensor* tensor = set_.find(input);
      if (tensor == nullptr) continue;
      const std::string name = std::string("d_") + input;
      add_vector(name, dtype, tensor->shape[0], true);
      if (one_.accumulate) fill_with_normal(name);
    }
  }

 private:
  bool gates() const { return one_.output_gate != "none"; }
  bool groups() const { return one_.group_norm != Norm::kNone; }
  bool normalizes() const { return one_.output_norm != "none"; }
  bool centers() const { return one_.output_norm == "layer_norm"; }

  DType dtype_of(Norm norm) const { return norm == Norm::kSame ? dtype_ : real_dtype(dtype_); }

  void fill_with_normal(const std::string& name) {
    fill_normal(set_.get(name), set_.buffers, random(name));
  }

  /// Adds two matrices [M,d_in], the second where there is a gate: with packed strides as columns
  /// of one matrix.
  void add_beside(const std::string& first, const std::string& second, bool output) {
    if (!gates() || one_.strides != Strides::kPacked) {
      add_matrix(first, dtype_, M_, d_in_, output);
      if (gates()) add_matrix(second, dtype_, M_, d_in_, output);
      return;
    }
    NamedTensor& left = add_tensor(set_, first, dtype_, {M_, 2 * d_in_}, {2 * d_in_, 1}, output);
    left.shape = {M_, d_in_};
    NamedTensor right = left;
    right.name = second;
    right.offset += d_in_ * size_of(dtype_);
    set_.tensors.push_back(right);
  }

  void add_group_norm() {
    const std::int64_t width = one_.group_weight_by_column ? d_in_ : one_.group_width;
    add_vector("group_norm_weight", dtype_of(one_.group_norm), width, false);
    fill_norm_weight("group_norm_weight");
    set_.scalars["group_width"] = static_cast<double>(one_.group_width);
    set_.scalars["norm_behind_gate"] = one_.behind_gate;
  }

  void add_norm() {
    const auto norm = std::ranges::find(kOutputNorms, one_.output_norm);
    set_.scalars["norm"] = static_cast<double>(norm - kOutputNorms.begin());
    set_.scalars["eps"] = kOutputNormEps;
    if (one_.norm == Norm::kNone) return;
    add_vector("norm_weight", dtype_of(one_.norm), d_, false);
    fill_norm_weight("norm_weight");
    if (!centers()) return;
    add_vector("norm_bias", dtype_of(one_.norm), d_, false);
    fill_with_normal("norm_bias");
  }

  std::int64_t d_in_;
};

}  // namespace

TensorSet make_gated_output(const Case& one, DType dtype, std::uint64_t seed) {
  Maker maker(one, dtype, seed);
  maker.add_inputs();
  maker.add_outputs(one.kept == Kept::kYes);
  return maker.take();
}

TensorSet make_gated_output_backward(const Case& one, DType dtype, std::uint64_t seed) {
  Maker maker(one, dtype, seed);
  maker.add_inputs();
  maker.add_outputs(true);
  maker.keep_outputs();
  maker.add_gradients();
  return maker.take();
}

TensorSet make_gated_output_both(const Case& one, DType dtype, std::uint64_t seed) {
  Maker maker(one, dtype, seed);
  maker.add_inputs();
  maker.add_outputs(true);
  maker.add_gradients();
  return maker.take();
}

}  // namespace tandem::tools
