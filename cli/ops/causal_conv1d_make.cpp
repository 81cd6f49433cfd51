// causal_conv1d's tensors from a case: layouts and random inputs.
#include <cstring>

#include "cli/calls/arguments.h"
#include "cli/ops/causal_conv1d.h"
#include "cli/ops/scan.h"
#include "core/real.h"
#include "ops/causal_conv1d.h"

namespace tandem::tools {
namespace {

/// Strides of x and its like; packed: a slice of rows three times as wide, as a projection leaves
/// them.
Dims token_strides(Strides kind, const Dims& shape, bool output) {
  if (kind != Strides::kPacked) return scan_strides(kind, shape, output);
  const std::int64_t row = 3 * shape[2];
  return {std::max<std::int64_t>(shape[1], 1) * row, row, 1};
}

/// Strides of a state [N,D,W-1]; transposed: tokens of all channels, as causal-conv1d has it;
/// padded: behind a column more, as fla's cache.
Dims state_strides(Strides kind, const Dims& shape, bool output) {
  const std::int64_t D = shape[1], tokens = shape[2];
  switch (kind) {
    case Strides::kTransposed: return {D * tokens, 1, D};
    case Strides::kPadded: return {D * (tokens + 1), tokens + 1, 1};
    case Strides::kOdd: return {D * (2 * tokens + 3) + 5, 2 * tokens + 3, 2};
    case Strides::kBroadcast:
      if (!output) return {0, tokens, 1};
      [[fallthrough]];
    default: return contiguous_strides(shape);
  }
}

Dims weight_strides(Strides kind, const Dims& shape, bool output) {
  if (kind == Strides::kPadded || kind == Strides::kOdd) return {shape[1] + 3, 1};
  if (kind == Strides::kBroadcast && !output) return {0, 1};
  return contiguous_strides(shape);
}

/// Strides of a tensor of a case by its rank and, of three axes, its name.
Dims strides_of(const Case& one, const std::string& name, const Dims& shape, bool output) {
  switch (shape.rank()) {
    case 1: return {1};
    case 2: return weight_strides(one.strides, shape, output);
    default:
      return name.ends_with("state") ? state_strides(one.strides, shape, output)
                                     : token_strides(one.strides, shape, output);
  }
}

class Maker {
 public:
  Maker(const Case& one, DType dtype, std::uint64_t seed)
      : one_(one), dtype_(dtype), seed_(seed + one.seed) {}

  NamedTensor& add(const char* name, DType dtype, const Dims& shape, bool output) {
    return add_tensor(set, name, dtype, shape, strides_of(one_, name, shape, output), output,
                      scan_shift(one_));
  }
  void add_input(const char* name, DType dtype, const Dims& shape) {
    fill(add(name, dtype, shape, false));
  }
  void fill(const NamedTensor& tensor) {
    fill_normal(tensor, set.buffers, RandomStream(seed_, tensor.name));
  }

  void add_taps() {
    const auto dtype = [&](bool fp32) { return fp32 ? real_dtype(dtype_) : dtype_; };
    add_input("weight", dtype(one_.fp32_weight), {one_.axis("D"), one_.axis("W")});
    if (one_.bias != Norm::kNone) {
      add_input("bias", dtype(one_.bias == Norm::kFp32), {one_.axis("D")});
    }
    set.scalars["silu"] = one_.activation == "silu" ? 1 : 0;
  }

  TensorSet set;

 private:
  const Case& one_;
  DType dtype_;
  std::uint64_t seed_;
};

}  // namespace

TensorSet make_causal_conv1d(const Case& one, DType dtype, std::uint64_t seed) {
  const Dims shape{one.axis("B"), one.axis("T"), one.axis("D")};
  Maker maker(one, dtype, seed);
  maker.add_input("x", dtype, shape);
  maker.add_taps();
  const std::int64_t N =
      one.cu_seqlens ? static_cast<std::int64_t>(one.cu_seqlens->size()) - 1 : shape[0];
  const Dims state{N, shape[2], one.axis("W") - 1};
  const bool both = one.states == States::kBoth;
  if (both || one.states == States::kInitial) maker.add_input("initial_state", dtype, state);
  if (one.cu_seqlens) {
    const NamedTensor& offsets =
        add_tensor(maker.set, "cu_seqlens", DType::kInt32, {N + 1}, {1}, false, scan_shift(one));
    std::memcpy(maker.set.buffers[offsets.buffer].data() + offsets.offset, one.cu_seqlens->data(),
                one.cu_seqlens->size() * sizeof(std::int32_t));
  }
  maker.add("out", dtype, shape, true);
  if (both || one.states == States::kFinal) maker.add("final_state", dtype, state, true);
  return std::move(maker.set);
}

TensorSet make_causal_conv1d_backward(const Case& one, DType dtype, std::uint64_t seed) {
  TensorSet set = make_causal_conv1d(one, dtype, seed);
  differentiate(
      set, causal_conv1d_backward_signature(), seed + one.seed, [&](const NamedTensor& input) {
        return GradientLayout{strides_of(one, input.name, input.shape, true), scan_shift(one)};
      });
  return set;
}

TensorSet make_causal_conv1d_step(const Case& one, DType dtype, std::uint64_t seed) {
  const std::int64_t B = one.axis("B"), D = one.axis("D");
  const auto row_strides = [&](bool output) {
    const Dims strides = token_strides(one.strides, {B, 1, D}, output);
    return Dims{one.strides == Strides::kTransposed ? D : strides[0], 1};
  };
  Maker maker(one, dtype, seed);
  const auto add_row = [&](const char* name, bool output) {
    return add_tensor(maker.set, name, dtype, {B, D}, row_strides(output), output, scan_shift(one));
  };
  maker.fill(add_row("x", false));
  maker.add_taps();
  maker.fill(maker.add("state", dtype, {B, D, one.axis("W") - 1}, true));
  add_row("out", true);
  return std::move(maker.set);
}

}  // namespace tandem::tools
