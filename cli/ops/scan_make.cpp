// A scan's tensors from a case: layouts and random inputs.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <stdexcept>
#include <string>

#include "cli/calls/arguments.h"
#include "cli/cases/decay_values.h"
#include "cli/ops/scan.h"
#include "core/real.h"
#include "ops/gated_scan.h"

namespace tandem::tools {

Dims scan_strides(Strides kind, const Dims& shape, bool output) {
  const std::int64_t B = shape[0], T = std::max<std::int64_t>(shape[1], 1), D = shape[2];
  const auto gaps = [&](std::int64_t token, std::int64_t batch) {
    return Dims{T * token + batch, token, 1};
  };
  switch (kind) {
    case Strides::kTransposed: return {D, std::max<std::int64_t>(B, 1) * D, 1};
    case Strides::kPadded: return gaps(padded_stride(D, 32), 64);
    case Strides::kOdd: return gaps(D + 5, 7);
    case Strides::kBroadcast:
      if (!output) return {0, D, 1};
      [[fallthrough]];
    default: return contiguous_strides(shape);
  }
}

std::int64_t scan_shift(const Case& one) {
  return one.strides == Strides::kMisaligned || one.strides == Strides::kOdd ? 1 : 0;
}

namespace {

const char* decay_name(const Case& one) {
  return one.decay == DecayKind::kLogDecay ? "log_decay" : "decay";
}

/// Adds these tensors [B,T,D] as slices of one [B,T,...] buffer.
void add_packed(TensorSet& set, DType dtype, const Dims& shape,
                const std::vector<std::string>& names) {
  const std::int64_t T = shape[1], width = shape[2] * std::ssize(names);
  NamedTensor row{names[0], dtype, {shape[0], T, width}, {T * width, width, 1}, 0, 0, false};
  row.buffer = set.buffers.size();
  set.buffers.emplace_back(2 * kGuardBytes + span_bytes(row));
  std::int64_t offset = kGuardBytes;
  for (const std::string& name : names) {
    set.tensors.push_back({name, dtype, shape, row.strides, row.buffer, offset, false});
    offset += shape[2] * size_of(dtype);
  }
}

void fill_decay(const Case& one, const NamedTensor& decay, Buffers& buffers,
                const RandomStream& random) {
  const std::int64_t T = one.axis("T"), D = one.axis("D");
  std::byte* data = buffers[decay.buffer].data() + decay.offset;
  for_each_element(decay, [&](std::int64_t offset, std::int64_t i) {
    const float log = log_decay_value(one.distribution, random, i, i / D % T);
    store(decay.dtype, data, offset, one.decay == DecayKind::kLogDecay ? log : std::exp(log));
  });
}

/// Makes a forward call's tensors; x, which is gated_scan's, only `with_x`.
TensorSet make_scan(const Case& one, DType dtype, std::uint64_t seed, bool with_x) {
  const Dims shape{one.axis("B"), one.axis("T"), one.axis("D")};
  const DType decay_dtype = one.fp32_decay ? real_dtype(dtype) : dtype;
  TensorSet set;
  std::vector<std::string> packed;  // names of the tensors in one buffer
  if (one.strides == Strides::kPacked) {
    if (with_x) packed.push_back("x");
    if (decay_dtype == dtype) packed.push_back(decay_name(one));
    if (one.gate) packed.push_back("gate");
    if (!packed.empty()) add_packed(set, dtype, shape, packed);
  }
  const auto add = [&](const char* name, DType of, bool output = false) {
    if (set.find(name)) return;
    add_tensor(set, name, of, shape, scan_strides(one.strides, shape, output), output,
               scan_shift(one));
  };
  const auto fill = [&](const NamedTensor& tensor) {
    fill_normal(tensor, set.buffers, RandomStream(seed + one.seed, tensor.name));
  };
  if (with_x) add("x", dtype);
  add(decay_name(one), decay_dtype);
  if (one.gate) add("gate", dtype);
  for (const NamedTensor& tensor : set.tensors) {
    if (tensor.name != decay_name(one)) fill(tensor);
  }
  fill_decay(one, set.get(decay_name(one)), set.buffers,
             RandomStream(seed + one.seed, decay_name(one)));
  const std::int64_t N =
      one.cu_seqlens ? static_cast<std::int64_t>(one.cu_seqlens->size()) - 1 : shape[0];
  if (one.cu_seqlens) {
    const NamedTensor& offsets =
        add_tensor(set, "cu_seqlens", DType::kInt32, {N + 1}, {1}, false, scan_shift(one));
    std::memcpy(set.buffers[offsets.buffer].data() + offsets.offset, one.cu_seqlens->data(),
                one.cu_seqlens->size() * sizeof(std::int32_t));
  }
  add("out", dtype, true);
  const Dims state{N, shape[2]};
  const auto add_state = [&](const char* name, bool output) {
    return add_tensor(set, name, real_dtype(dtype), state, contiguous_strides(state), output,
                      scan_shift(one));
  };
  const bool in_place = one.states == States::kInPlace;
  if (one.states == States::kInitial || one.states == States::kBoth || in_place) {
    NamedTensor initial = add_state("initial_state", false);
    fill(initial);
    if (in_place) {
      initial.name = "final_state";
      initial.output = true;
      set.tensors.push_back(initial);
    }
  }
  if (one.states == States::kFinal || one.states == States::kBoth) add_state("final_state", true);
  return set;
}

/// Makes the tensors of dense sequences without x and states: decays, gate and out.
TensorSet make_dense(Case one, DType dtype, std::uint64_t seed) {
  one.cu_seqlens.reset();
  one.states = States::kNone;
  return make_scan(one, dtype, seed, false);
}

/// Adds a contiguous tensor of fp32, of an op in fp64 of that.
NamedTensor add_real(TensorSet& set, const Case& one, const char* name, DType dtype,
                     const Dims& shape, bool output) {
  return add_tensor(set, name, real_dtype(dtype), shape, contiguous_strides(shape), output,
                    scan_shift(one));
}

void add_kept_states(TensorSet& set, const Case& one, DType dtype) {
  const std::int64_t count = (one.axis("T") + kKeptStateTokens - 1) / kKeptStateTokens;
  add_real(set, one, "states", dtype, {one.axis("B"), count, one.axis("D")}, true);
}

/// Adds what gated_scan_decay makes of a set's `decay`, whose name and logs it has.
void add_products(TensorSet& set, const Case& one, DType dtype) {
  const Dims shape{one.axis("B"), one.axis("T"), one.axis("D")};
  const std::int64_t chunks = (shape[1] + kGatedScanChunk - 1) / kGatedScanChunk;
  add_real(set, one, "before", dtype, {shape[0], chunks, shape[2]}, true);
  add_real(set, one, "total", dtype, {shape[0], shape[2]}, true);
  set.scalars["is_log"] = one.decay == DecayKind::kLogDecay ? 1 : 0;
}

}  // namespace

TensorSet make_gated_scan(const Case& one, DType dtype, std::uint64_t seed, bool kept) {
  TensorSet set = make_scan(one, dtype, seed, true);
  if (kept) add_kept_states(set, one, dtype);
  return set;
}

namespace {

/// Makes gated_scan_decay's tensors of a dense call's, which keeps its own.
TensorSet decay_products(const TensorSet& dense, const Case& one, DType dtype) {
  NamedTensor decay = dense.get(decay_name(one));
  TensorSet set;
  set.buffers.push_back(dense.buffers[decay.buffer].clone());
  decay.name = "decay";
  decay.buffer = 0;
  set.tensors = {decay};
  add_products(set, one, dtype);
  return set;
}

/// Makes dense sequences' tensors and what is before their chunks. `tokens` is what out is called.
TensorSet make_carried(const Case& one, DType dtype, std::uint64_t seed, const char* tokens) {
  TensorSet set = make_dense(one, dtype, seed);
  TensorSet products = decay_products(set, one, dtype);
  const Signature& decay = gated_scan_decay_signature();
  const auto args = arguments(decay, products, host_bases(products), Device::cpu());
  decay.run(args.get(), {}, {});
  NamedTensor& out =
      *std::ranges::find(set.tensors, std::string("out"), [](auto& tensor) { return tensor.name; });
  out.name = tokens;
  out.output = out.name == "out";
  fill_normal(out, set.buffers, RandomStream(seed + one.seed, tokens));
  const NamedTensor& from = products.get("before");
  const NamedTensor before = add_real(set, one, "before", dtype, from.shape, false);
  std::memcpy(set.buffers[before.buffer].data() + before.offset,
              products.buffers[from.buffer].data() + from.offset,
              static_cast<std::size_t>(before.shape.product() * size_of(before.dtype)));
  return set;
}

}  // namespace

TensorSet make_gated_scan_decay(const Case& one, DType dtype, std::uint64_t seed) {
  return decay_products(make_dense(one, dtype, seed), one, dtype);
}

TensorSet make_gated_scan_carry(const Case& one, DType dtype, std::uint64_t seed) {
  TensorSet set = make_carried(one, dtype, seed, "out");
  const NamedTensor carry =
      add_real(set, one, "carry", dtype, {one.axis("B"), one.axis("D")}, false);
  fill_normal(carry, set.buffers, RandomStream(seed + one.seed, "carry"));
  return set;
}

TensorSet make_gated_scan_carry_backward(const Case& one, DType dtype, std::uint64_t seed) {
  TensorSet set = make_carried(one, dtype, seed, "d_out");
  add_real(set, one, "sums", dtype, set.get("before").shape, true);
  add_real(set, one, "d_carry", dtype, {one.axis("B"), one.axis("D")}, true);
  return set;
}

/// Makes gated_scan's tensors with u and the weight instead of x, such that x = u W^T has its usual
/// size.
TensorSet make_linear_scan(const Case& one, DType dtype, std::uint64_t seed, bool kept) {
  TensorSet set = make_scan(one, dtype, seed, false);
  const Dims u{one.axis("B"), one.axis("T"), one.axis("d")};
  const std::int64_t d = u[2];
  const std::int64_t row_stride = one.strides == Strides::kPadded ? padded_stride(d, 32)
                                  : one.strides == Strides::kOdd  ? d + 5
                                                                  : d;
  const NamedTensor added =
      add_tensor(set, "u", dtype, u, scan_strides(one.strides, u, false), false, scan_shift(one));
  fill_normal(added, set.buffers, RandomStream(seed + one.seed, "u"));
  const NamedTensor weight =
      add_tensor(set, "weight", dtype, {one.axis("D"), d}, {row_stride, 1}, false, scan_shift(one));
  const RandomStream random(seed + one.seed, "weight");
  const float scale = 1 / std::sqrt(static_cast<float>(d));
  std::byte* data = set.buffers[weight.buffer].data() + weight.offset;
  for_each_element(weight, [&](std::int64_t offset, std::int64_t i) {
    store(dtype, data, offset, scale * random.normal(i));
  });
  if (!kept) return set;
  const Dims x{u[0], u[1], one.axis("D")};
  add_tensor(set, "x", dtype, x, scan_strides(one.strides, x, true), true, scan_shift(one));
  add_kept_states(set, one, dtype);
  return set;
}

TensorSet differentiate_scan(TensorSet set, const Signature& backward, const Case& one,
                             std::uint64_t seed) {
  differentiate(set, backward, seed + one.seed, [&](const NamedTensor& input) {
    const bool tokens = input.shape.rank() == 3;
    return GradientLayout{tokens ? scan_strides(one.strides, input.shape, true) : input.strides,
                          scan_shift(one)};
  });
  return set;
}

}  // namespace tandem::tools
