#include "ops/gla_check.h"

#include <cmath>
#include <cstdint>
#include <string>

namespace tandem {

void check_head_groups(const Argument& keys, int H, int HQ) {
  if (H % HQ == 0) return;
  refuse(keys.op, std::string(keys.name) + " must have a number of heads HQ that divides H = " +
                      std::to_string(H) + ", got HQ = " + std::to_string(HQ));
}

float check_scale(const char* op, std::optional<double> scale, int K) {
  const double value = scale.value_or(1.0 / std::sqrt(static_cast<double>(K)));
  if (!std::isfinite(value)) refuse(op, "scale must be finite, got " + std::to_string(value));
  return static_cast<float>(value);
}

StridedTensor strided(const TensorView& view) {
  return {view.data, view.strides[0], view.strides[1], view.strides[2]};
}

DecayTensor check_decay(const Argument& log_decay, const char* axes, const Dims& shape,
                        Device device) {
  const TensorView& view = log_decay.view;
  const std::string expected = std::string("[H] or ") + axes;
  const int last = shape.rank() - 1;
  if (view.shape.rank() == shape.rank() + 1) {
    throw Unsupported("[" + std::string(log_decay.op) + "] log_decay must have shape " + expected +
                      ", got " + to_string(view.shape) +
                      ": a decay per key channel is not built yet");
  }
  const bool constant = view.shape.rank() == 1;
  if (constant) {
    check_shape(log_decay, "[H]", {shape[last]});
  } else {
    check_rank(log_decay, expected.c_str(), shape.rank());
    check_shape(log_decay, axes, shape);
  }
  check_dtype(log_decay, DType::kFloat32);
  check_device(log_decay, device);
  check_data(log_decay);
  check_alignment(log_decay);
  const auto* data = static_cast<const float*>(view.data);
  if (constant) return {data, 0, 0, view.strides[0]};
  return {data, view.strides[0], last == 2 ? view.strides[1] : 0, view.strides[last]};
}

GlaRecurrence check_recurrence(const Argument& keys, const TensorView& k, const TensorView& v,
                               const std::optional<TensorView>& log_decay,
                               const std::optional<TensorView>& cu_seqlens, const char* v_name) {
  const char* op = keys.op;
  const Argument values{op, v_name, v};
  check_rank(keys, "[B,T,HQ,K]", 4);
  check_rank(values, "[B,T,H,V]", 4);
  check_extents(keys, "HQ and K", 2);
  check_extents(values, "H and V", 2);
  GlaRecurrence recurrence;
  const Dims& shape = keys.view.shape;
  recurrence.dtype = keys.view.dtype;
  recurrence.device = keys.view.device;
  recurrence.B = recurrence.N = shape[0];
  recurrence.T = shape[1];
  recurrence.HQ = static_cast<int>(shape[2]);
  recurrence.K = static_cast<int>(shape[3]);
  recurrence.H = static_cast<int>(v.shape[2]);
  recurrence.V = static_cast<int>(v.shape[3]);
  const DType dtype = recurrence.dtype;
  const Device device = recurrence.device;
  const std::int64_t B = recurrence.B, T = recurrence.T, H = recurrence.H, V = recurrence.V;

  check_activation_dtype(keys);
  check_activation(keys, "[B,T,HQ,K]", shape, dtype, device);
  check_activation({op, "k", k}, "[B,T,HQ,K]", shape, dtype, device);
  check_activation(values, "[B,T,H,V]", {B, T, H, V}, dtype, device);
  check_head_groups(keys, recurrence.H, recurrence.HQ);
  recurrence.k = strided(k);
  recurrence.v = strided(v);
  if (cu_seqlens) {
    const SequenceOffsets offsets = check_sequences({op, "cu_seqlens", *cu_seqlens}, B, device);
    recurrence.N = offsets.N;
    recurrence.cu_seqlens = offsets.data;
  }
  if (log_decay) {
    recurrence.log_decay = check_decay({op, "log_decay", *log_decay}, "[B,T,H]", {B, T, H}, device);
  }
  return recurrence;
}

}  // namespace tandem
