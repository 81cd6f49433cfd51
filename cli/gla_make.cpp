// gla's tensors from a case: layouts and random inputs.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "gla.h"

namespace tandem::tools {
namespace {

/// Strides of an activation [B,T,heads,D]; `shared` is how many heads one stored head serves.
Dims activation_strides(Strides kind, const Dims& shape, bool output) {
  const std::int64_t T = std::max<std::int64_t>(shape[1], 1), heads = shape[2], D = shape[3];
  const auto gaps = [&](std::int64_t head, std::int64_t token, std::int64_t batch) {
    const std::int64_t head_stride = D + head, time_stride = heads * head_stride + token;
    return Dims{T * time_stride + batch, time_stride, head_stride, 1};
  };
  switch (kind) {
    case Strides::kTransposed: return {heads * T * D, D, T * D, 1};
    case Strides::kPadded: return gaps(16, 32, 64);
    case Strides::kOdd: return gaps(3, 5, 7);
    case Strides::kBroadcast:
      if (!output) return {T * D, D, 0, 1};
      [[fallthrough]];
    default: return contiguous_strides(shape);
  }
}

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

float log_sigmoid(float x) { return std::fmin(x, 0.0f) - std::log1p(std::exp(-std::fabs(x))); }

/// The decay at linear index `i` of [B,T,H] or [H]; `t` is 0 for a constant decay.
float decay_value(DecayDistribution distribution, const RandomStream& random, std::int64_t i,
                  std::int64_t t, bool constant) {
  constexpr float kInf = std::numeric_limits<float>::infinity();
  const float normal = log_sigmoid(random.normal(2 * i)) / 16;
  const float uniform = random.uniform(2 * i + 1);
  // A constant decay has so few values that chance might leave out the special one.
  const bool special = constant ? i % 3 == 1 : uniform < 1.0f / 16;
  switch (distribution) {
    case DecayDistribution::kNormal: return normal;
    case DecayDistribution::kNormalBench: return log_sigmoid(random.normal(2 * i) + 2);
    case DecayDistribution::kStrong: return -2 - 18 * uniform;
    case DecayDistribution::kReset: return special ? -kInf : normal;
    case DecayDistribution::kResetEdges: return t % 64 == 0 || t % 64 == 63 ? -kInf : normal;
    case DecayDistribution::kAllReset: return -kInf;
    case DecayDistribution::kMinus20: return -20;
    case DecayDistribution::kHuge: return special ? -1e30f : normal;
    case DecayDistribution::kZero: return 0;
    case DecayDistribution::kAlternating: return t % 2 == 0 ? 0 : -20;
    case DecayDistribution::kPositive: return 0.02f * uniform;
  }
  return 0;
}

/// q, k and v in one buffer, each row of a token holding all three.
void add_packed(TensorSet& set, DType dtype, const Dims& qk, const Dims& v) {
  const std::int64_t width = 2 * qk[2] * qk[3] + v[2] * v[3];
  const std::int64_t T = qk[1];
  NamedTensor row{"q", dtype, {qk[0], T, width}, {T * width, width, 1}, 0, 0, false};
  row.buffer = set.buffers.size();
  set.buffers.emplace_back(2 * kGuardBytes + span_bytes(row));
  std::int64_t offset = kGuardBytes;
  const auto slice = [&](const char* name, const Dims& shape) {
    set.tensors.push_back(
        {name, dtype, shape, {T * width, width, shape[3], 1}, row.buffer, offset, false});
    offset += shape[2] * shape[3] * size_of(dtype);
  };
  slice("q", qk);
  slice("k", qk);
  slice("v", v);
}

}  // namespace

TensorSet make_gla(const Case& one, DType dtype, std::uint64_t seed) {
  const std::int64_t B = one.axis("B"), T = one.axis("T"), H = one.axis("H"), HQ = one.axis("HQ");
  const std::int64_t K = one.axis("K"), V = one.axis("V");
  const std::int64_t N = one.cu_seqlens ? static_cast<std::int64_t>(one.cu_seqlens->size()) - 1 : B;
  const Dims qk{B, T, HQ, K}, v{B, T, H, V}, state{N, H, K, V};
  const std::int64_t shift =
      one.strides == Strides::kMisaligned || one.strides == Strides::kOdd ? 1 : 0;
  TensorSet set;
  if (one.scale) set.scalars["scale"] = *one.scale;

  const auto activation = [&](const char* name, const Dims& shape, bool output) {
    add_tensor(set, name, dtype, shape, activation_strides(one.strides, shape, output), output,
               shift);
  };
  if (one.strides == Strides::kPacked) {
    add_packed(set, dtype, qk, v);
  } else {
    activation("q", qk, false);
    activation("k", qk, false);
    activation("v", v, false);
  }
  // why no smaller k: errors are relative, so a state that grows with T is no harder; fp16 stays in
  // range.
  for (const char* name : {"q", "k", "v"}) {
    fill_normal(set.get(name), set.buffers, RandomStream(seed + one.seed, name));
  }
  if (one.decay != DecayKind::kNone) {
    const bool constant = one.decay == DecayKind::kConstant;
    const Dims shape = constant ? Dims{H} : Dims{B, T, H};
    const NamedTensor& decay = add_tensor(set, "log_decay", DType::kFloat32, shape,
                                          decay_strides(one.strides, shape), false, shift);
    std::byte* data = set.buffers[decay.buffer].data() + decay.offset;
    const RandomStream random(seed + one.seed, "log_decay");
    for_each_element(decay, [&](std::int64_t offset, std::int64_t i) {
      store(DType::kFloat32, data, offset,
            decay_value(one.distribution, random, i, constant ? 0 : i / H % T, constant));
    });
  }
  if (one.cu_seqlens) {
    const NamedTensor& offsets =
        add_tensor(set, "cu_seqlens", DType::kInt32, {N + 1}, {1}, false, shift);
    std::memcpy(set.buffers[offsets.buffer].data() + offsets.offset, one.cu_seqlens->data(),
                one.cu_seqlens->size() * sizeof(std::int32_t));
  }
  activation("o", v, true);
  const bool in_place = one.states == States::kInPlace;
  if (one.states == States::kInitial || one.states == States::kBoth || in_place) {
    NamedTensor initial = add_tensor(set, "initial_state", DType::kFloat32, state,
                                     contiguous_strides(state), false, shift);
    fill_normal(initial, set.buffers, RandomStream(seed + one.seed, "initial_state"));
    if (in_place) {
      initial.name = "final_state";
      initial.output = true;
      set.tensors.push_back(initial);
    }
  }
  if (one.states == States::kFinal || one.states == States::kBoth) {
    add_tensor(set, "final_state", DType::kFloat32, state, contiguous_strides(state), true, shift);
  }
  return set;
}

}  // namespace tandem::tools
