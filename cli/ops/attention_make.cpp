// Tensors of attention and attention_weights from a case: layouts, random inputs, and what a
// forward hands its backward.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include "cli/calls/arguments.h"
#include "cli/ops/activations.h"
#include "cli/ops/attention.h"
#include "cli/ops/attention_weights.h"
#include "core/real.h"

namespace tandem::tools {
namespace {

/// Adds the tensors of a case, laid out as it says.
class Maker {
 public:
  Maker(const Case& one, DType dtype, std::uint64_t seed) : one_(one), dtype_(dtype), seed_(seed) {}

  void add_inputs() {
    const std::int64_t B = one_.axis("B"), K = one_.axis("K");
    const PackedTensor q{"q", {B, one_.axis("T"), one_.axis("H"), K}};
    const PackedTensor k{"k", {B, one_.axis("TK"), one_.axis("HKV"), K}};
    std::vector<PackedTensor> of_keys = {k};
    if (one_.axes.count("V") != 0) {
      of_keys.push_back({"v", {B, one_.axis("TK"), one_.axis("HKV"), one_.axis("V")}});
    }
    if (one_.strides != Strides::kPacked) {
      add_activation(q.name, q.shape, false);
      for (const PackedTensor& one : of_keys) add_activation(one.name, one.shape, false);
    } else if (q.shape[1] == k.shape[1]) {
      of_keys.insert(of_keys.begin(), q);
      add_packed(set_, dtype_, of_keys);
    } else {
      add_activation(q.name, q.shape, false);
      add_packed(set_, dtype_, of_keys);
    }
    fill_inputs();
    if (one_.cu_seqlens) {
      add_int32("cu_seqlens_q", *one_.cu_seqlens);
      add_int32("cu_seqlens_k", one_.cu_seqlens_k.value_or(*one_.cu_seqlens));
    }
    if (one_.lengths_k) add_int32("lengths_k", *one_.lengths_k);
    if (one_.scale) set_.scalars["scale"] = *one_.scale;
    if (one_.causal) set_.scalars["causal"] = 1;
    const auto set_window = [&](const char* name, const std::optional<std::int64_t>& window) {
      if (window) set_.scalars[name] = static_cast<double>(*window);
    };
    set_window("window_left", one_.window_left);
    set_window("window_right", one_.window_right);
  }

  void add_outputs(bool log_sum_exp) {
    add_activation("o", output_shape(), true);
    if (log_sum_exp) add_rows("log_sum_exp", true);
  }

  /// Adds a tensor [B,H,TQ,TK].
  void add_weights(const char* name, bool output) {
    const Dims shape{one_.axis("B"), one_.axis("H"), one_.axis("T"), one_.axis("TK")};
    add_tensor(set_, name, dtype_, shape, weights_strides(shape), output, shift_of(one_));
    if (!output) fill_normal(set_.get(name), set_.buffers, random(name));
  }

  /// Runs the forward, whose outputs become inputs. why the CPU's and not the definition: it takes
  /// minutes of the large cases. What it keeps wrong, the gradients show.
  void keep_outputs(const Signature& forward) {
    forward.run(arguments(forward, set_, host_bases(set_), Device::cpu()).get(), {}, {});
    for (NamedTensor& tensor : set_.tensors) tensor.output = false;
  }

  void add_gradients() {
    add_activation("d_o", output_shape(), false);
    fill_normal(set_.get("d_o"), set_.buffers, random("d_o"));
    if (one_.log_sum_exp) {
      add_rows("d_log_sum_exp", false);
      fill_normal(set_.get("d_log_sum_exp"), set_.buffers, random("d_log_sum_exp"));
    }
    add_input_gradients();
  }

  void add_input_gradients() {
    for (const std::string name : {"q", "k", "v"}) {
      if (set_.find(name) == nullptr) continue;
      const Dims shape = set_.get(name).shape;
      add_activation("d" + name, shape, true);
    }
  }

  TensorSet take() { return std::move(set_); }

 private:
  Dims weights_strides(const Dims& shape) const {
    const std::int64_t H = shape[1], TQ = std::max<std::int64_t>(shape[2], 1);
    const std::int64_t TK = std::max<std::int64_t>(shape[3], 1);
    const auto gaps = [&](std::int64_t row) { return Dims{H * TQ * row + 8, TQ * row, row, 1}; };
    switch (one_.strides) {
      case Strides::kTransposed: return {TQ * H * TK, TK, H * TK, 1};
      case Strides::kPadded: return gaps(padded_stride(TK, 16));
      case Strides::kOdd: return gaps(TK + 3);
      default: return contiguous_strides(shape);
    }
  }
  Dims output_shape() const {
    return {one_.axis("B"), one_.axis("T"), one_.axis("H"), one_.axis("V")};
  }
  RandomStream random(const std::string& name) const { return {seed_ + one_.seed, name}; }

  void add_activation(const std::string& name, const Dims& shape, bool output) {
    add_tensor(set_, name, dtype_, shape, activation_strides(one_.strides, shape, output), output,
               shift_of(one_));
  }
  /// Adds an fp32 tensor [B,H,T].
  void add_rows(const char* name, bool output) {
    const Dims shape{one_.axis("B"), one_.axis("H"), one_.axis("T")};
    add_tensor(set_, name, real_dtype(dtype_), shape, contiguous_strides(shape), output,
               shift_of(one_));
  }
  void add_int32(const char* name, const std::vector<std::int32_t>& values) {
    const NamedTensor& tensor =
        add_tensor(set_, name, DType::kInt32, {std::ssize(values)}, {1}, false, shift_of(one_));
    std::memcpy(set_.buffers[tensor.buffer].data() + tensor.offset, values.data(),
                values.size() * sizeof(std::int32_t));
  }

  void fill_inputs() {
    constexpr float kLarge = 100;  // of queries and keys: their scores are around its square
    const auto large = [](float normal, auto...) { return kLarge * normal; };
    const bool infinite = one_.values == "infinite";
    if (one_.values == "large") {
      fill("q", large);
      fill("k", large);
    } else if (infinite) {
      fill("q", infinite_query);
      fill("k", infinite_key);
    } else {
      fill("q", [](float normal, auto...) { return normal; });
      fill("k", [](float normal, auto...) { return normal; });
    }
    if (set_.find("v") == nullptr) return;
    const float mean = one_.values == "around_10" ? 10 : 0;
    fill("v", [=](float normal, auto...) { return mean + normal; });
  }

  /// All scores of every third query are -inf, by the first column, and those of every fifth key
  /// by the second; no product there is of another sign.
  static float infinite_query(float normal, std::int64_t token, std::int64_t column) {
    if (column > 1) return normal;
    const bool none = column == 0 && token % 3 == 0;
    return none ? -std::numeric_limits<float>::infinity() : std::fabs(normal) + 0.25f;
  }
  static float infinite_key(float normal, std::int64_t token, std::int64_t column) {
    if (column > 1) return normal;
    const bool none = column == 1 && token % 5 == 0;
    return none ? -std::numeric_limits<float>::infinity() : std::fabs(normal) + 0.25f;
  }

  /// Stores value(normal, token, column) for each element.
  template <class Value>
  void fill(const std::string& name, const Value& value) {
    const NamedTensor& tensor = set_.get(name);
    const RandomStream stream = random(name);
    std::byte* data = set_.buffers[tensor.buffer].data() + tensor.offset;
    const std::int64_t T = tensor.shape[1], dim = tensor.shape[3];
    // Heads that share memory are walked once.
    const std::int64_t heads = tensor.strides[2] == 0 ? 1 : tensor.shape[2];
    for_each_element(tensor, [&](std::int64_t offset, std::int64_t i) {
      store(dtype_, data, offset, value(stream.normal(i), i / (dim * heads) % T, i % dim));
    });
  }

  const Case& one_;
  DType dtype_;
  std::uint64_t seed_;
  TensorSet set_;
};

}  // namespace

TensorSet make_attention(const Case& one, DType dtype, std::uint64_t seed) {
  Maker maker(one, dtype, seed);
  maker.add_inputs();
  maker.add_outputs(one.log_sum_exp);
  return maker.take();
}

TensorSet make_attention_backward(const Case& one, DType dtype, std::uint64_t seed) {
  Maker maker(one, dtype, seed);
  maker.add_inputs();
  maker.add_outputs(true);
  maker.keep_outputs(attention_forward_signature());
  maker.add_gradients();
  return maker.take();
}

TensorSet make_attention_both(const Case& one, DType dtype, std::uint64_t seed) {
  Maker maker(one, dtype, seed);
  maker.add_inputs();
  maker.add_outputs(true);
  maker.add_gradients();
  return maker.take();
}

TensorSet make_attention_weights(const Case& one, DType dtype, std::uint64_t seed) {
  Maker maker(one, dtype, seed);
  maker.add_inputs();
  maker.add_weights("w", true);
  return maker.take();
}

TensorSet make_attention_weights_backward(const Case& one, DType dtype, std::uint64_t seed) {
  Maker maker(one, dtype, seed);
  maker.add_inputs();
  maker.add_weights("w", true);
  maker.keep_outputs(attention_weights_forward_signature());
  maker.add_weights("d_w", false);
  maker.add_input_gradients();
  return maker.take();
}

TensorSet make_attention_weights_both(const Case& one, DType dtype, std::uint64_t seed) {
  Maker maker(one, dtype, seed);
  maker.add_inputs();
  maker.add_weights("w", true);
  maker.add_weights("d_w", false);
  maker.add_input_gradients();
  return maker.take();
}

}  // namespace tandem::tools
