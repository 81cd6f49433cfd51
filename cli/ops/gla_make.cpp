// gla's tensors from a case: layouts and random inputs.
#include <algorithm>
#include <cstring>
#include <utility>

#include "cli/calls/arguments.h"
#include "cli/calls/keep_outputs.h"
#include "cli/cases/decay_values.h"
#include "cli/ops/activations.h"
#include "cli/ops/gla.h"
#include "core/real.h"

namespace tandem::tools {

namespace {

Dims decay_strides(Strides kind, const Dims& shape) {
  if (shape.rank() == 1) {
    return {kind == Strides::kOdd || kind == Strides::kPadded ? 3
            : kind == Strides::kBroadcast                     ? 0
                                                              : 1};
  }
  const std::int64_t T = std::max<std::int64_t>(shape[1], 1), H = shape[2];
  switch (kind) {
    case Strides::kTransposed: return {H * T, 1, T};
    case Strides::kOdd:
    case Strides::kPadded: return {T * (2 * H + 1) + 3, 2 * H + 1, 2};
    case Strides::kBroadcast: return {0, H, 1};
    default: return contiguous_strides(shape);
  }
}

/// Shapes of a case's tensors.
struct Shapes {
  Dims qk, v, state;
  std::int64_t shift = 0;  // elements that tensors lie off their alignment
};

Shapes shapes_of(const Case& one) {
  const std::int64_t B = one.axis("B"), T = one.axis("T"), H = one.axis("H");
  const std::int64_t K = one.axis("K"), V = one.axis("V");
  const std::int64_t N = one.cu_seqlens ? static_cast<std::int64_t>(one.cu_seqlens->size()) - 1 : B;
  return {{B, T, one.axis("HQ"), K}, {B, T, H, V}, {N, H, K, V}, shift_of(one)};
}

void add_activation(TensorSet& set, const Case& one, const char* name, DType dtype,
                    const Dims& shape, bool output) {
  add_tensor(set, name, dtype, shape, activation_strides(one.strides, shape, output), output,
             shapes_of(one).shift);
}

void add_log_decay(TensorSet& set, const Case& one, DType dtype, const RandomStream& random) {
  const std::int64_t B = one.axis("B"), T = one.axis("T"), H = one.axis("H");
  const bool constant = one.decay == DecayKind::kConstant;
  const Dims shape = constant ? Dims{H} : Dims{B, T, H};
  const NamedTensor& decay =
      add_tensor(set, "log_decay", dtype, shape, decay_strides(one.strides, shape), false,
                 shapes_of(one).shift);
  std::byte* data = set.buffers[decay.buffer].data() + decay.offset;
  for_each_element(decay, [&](std::int64_t offset, std::int64_t i) {
    store(dtype, data, offset,
          log_decay_value(one.distribution, random, i, constant ? 0 : i / H % T, constant));
  });
}

/// Makes k, v, log_decay and cu_seqlens, filled, and q if the call has it.
TensorSet make_inputs(const Case& one, DType dtype, std::uint64_t seed, bool queries) {
  const auto [qk, v, state, shift] = shapes_of(one);
  TensorSet set;
  if (one.strides == Strides::kPacked) {
    add_packed(set, dtype, {{"q", qk}, {"k", qk}, {"v", v}});
    if (!queries) set.tensors.erase(set.tensors.begin());  // its place is a gap
  } else {
    if (queries) add_activation(set, one, "q", dtype, qk, false);
    add_activation(set, one, "k", dtype, qk, false);
    add_activation(set, one, "v", dtype, v, false);
  }
  // why no smaller k: errors are relative, so a state that grows with T is no harder; fp16 stays in
  // range.
  for (const NamedTensor& tensor : set.tensors) {
    fill_normal(tensor, set.buffers, RandomStream(seed + one.seed, tensor.name));
  }
  if (one.decay != DecayKind::kNone) {
    add_log_decay(set, one, real_dtype(dtype), RandomStream(seed + one.seed, "log_decay"));
  }
  if (one.cu_seqlens) {
    const NamedTensor& offsets =
        add_tensor(set, "cu_seqlens", DType::kInt32, {state[0] + 1}, {1}, false, shift);
    std::memcpy(set.buffers[offsets.buffer].data() + offsets.offset, one.cu_seqlens->data(),
                one.cu_seqlens->size() * sizeof(std::int32_t));
  }
  return set;
}

Dims without_time(const Dims& dims) {
  return dims.rank() == 4 ? Dims{dims[0], dims[2], dims[3]} : Dims{dims[0], dims[2]};
}

/// Returns the strides of a state [B,H,K,V]; the last is 1.
Dims state_strides(Strides kind, const Dims& shape) {
  const std::int64_t B = shape[0], H = shape[1], K = shape[2], V = shape[3];
  const auto gaps = [&](std::int64_t key, std::int64_t head, std::int64_t batch) {
    const std::int64_t head_stride = K * key + head;
    return Dims{H * head_stride + batch, head_stride, key, 1};
  };
  switch (kind) {
    case Strides::kTransposed: return {K * V, B * K * V, V, 1};  // stored [H,B,K,V]
    case Strides::kPacked: return gaps(V, 0, 2 * H * K * V);     // one of three layers' states
    case Strides::kPadded: return gaps(padded_stride(V, 8), 16, 32);
    case Strides::kOdd: return gaps(V + 3, 5, 7);
    default: return contiguous_strides(shape);
  }
}

}  // namespace

TensorSet make_gla(const Case& one, DType dtype, std::uint64_t seed) {
  const auto [qk, v, state, shift] = shapes_of(one);
  TensorSet set = make_inputs(one, dtype, seed, true);
  if (one.scale) set.scalars["scale"] = *one.scale;
  add_activation(set, one, "o", dtype, v, true);
  const bool in_place = one.states == States::kInPlace;
  if (one.states == States::kInitial || one.states == States::kBoth || in_place) {
    NamedTensor initial = add_tensor(set, "initial_state", real_dtype(dtype), state,
                                     contiguous_strides(state), false, shift);
    fill_normal(initial, set.buffers, RandomStream(seed + one.seed, "initial_state"));
    if (in_place) {
      initial.name = "final_state";
      initial.output = true;
      set.tensors.push_back(initial);
    }
  }
  if (one.states == States::kFinal || one.states == States::kBoth) {
    add_tensor(set, "final_state", real_dtype(dtype), state, contiguous_strides(state), true,
               shift);
  }
  if (one.saved_states) {
    const std::int64_t saved = (v[1] + kSavedStateTokens - 1) / kSavedStateTokens;
    const Dims states{v[0], saved, v[2], v[3], qk[3]};
    add_tensor(set, "saved_states", dtype, states, contiguous_strides(states), true, shift);
  }
  return set;
}

TensorSet make_gla_state(const Case& one, DType dtype, std::uint64_t seed) {
  const auto [qk, v, state, shift] = shapes_of(one);
  TensorSet set = make_inputs(one, dtype, seed, false);
  const Dims total{state[0], state[1]};
  add_tensor(set, "state", real_dtype(dtype), state, contiguous_strides(state), true, shift);
  add_tensor(set, "total_log_decay", real_dtype(dtype), total, contiguous_strides(total), true,
             shift);
  return set;
}

namespace {

TensorSet differentiate_gla(TensorSet set, const Case& one, DType dtype, std::uint64_t seed) {
  differentiate(set, gla_backward_signature(), seed + one.seed, [&](const NamedTensor& input) {
    const Dims& shape = input.shape;
    if (shape.rank() != 4 || input.dtype != dtype || input.name == "initial_state") {
      return GradientLayout{contiguous_strides(shape)};
    }
    return GradientLayout{activation_strides(one.strides, shape, true), shapes_of(one).shift};
  });
  return set;
}

}  // namespace

TensorSet make_gla_backward(const Case& one, DType dtype, std::uint64_t seed) {
  TensorSet set = make_gla(one, dtype, seed);
  if (one.saved_states) {
    keep_outputs<GlaForwardArgs>(gla_forward_signature(), set, {"saved_states"});
  }
  return differentiate_gla(std::move(set), one, dtype, seed);
}

TensorSet make_gla_second(const Case& one, DType dtype, std::uint64_t seed) {
  return differentiate_gla(make_gla(one, dtype, seed), one, dtype, seed);
}

/// The tensors of "state" under other names.
TensorSet make_gla_state_backward(const Case& one, DType dtype, std::uint64_t seed) {
  TensorSet set = make_gla_state(one, dtype, seed);
  for (NamedTensor& tensor : set.tensors) {
    if (tensor.name == "k") tensor.name = "q";
    if (tensor.name == "v") tensor.name = "d_o";
    if (tensor.name == "state") tensor.name = "d_state";
  }
  if (one.scale) set.scalars["scale"] = *one.scale;
  return set;
}

TensorSet make_gla_step(const Case& one, DType dtype, std::uint64_t seed) {
  Case token = one;
  token.states = States::kNone;
  token.saved_states = false;
  TensorSet set = make_gla(token, dtype, seed);
  for (NamedTensor& tensor : set.tensors) {
    if (tensor.shape.rank() == 1) continue;  // a constant decay
    tensor.shape = without_time(tensor.shape);
    tensor.strides = without_time(tensor.strides);
  }
  const Dims state{one.axis("B"), one.axis("H"), one.axis("K"), one.axis("V")};
  const DType state_dtype = dtype == DType::kFloat64 ? dtype : one.state_dtype;
  const NamedTensor& added = add_tensor(set, "state", state_dtype, state,
                                        state_strides(one.strides, state), true, shift_of(one));
  fill_normal(added, set.buffers, RandomStream(seed + one.seed, "state"));
  return set;
}

}  // namespace tandem::tools
