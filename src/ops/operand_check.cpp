#include "ops/operand_check.h"

#include <limits>
#include <string>

namespace tandem {

void check_extents(const Argument& argument, const char* names, int count) {
  constexpr std::int64_t kLargest = std::numeric_limits<std::int32_t>::max();
  const Dims& shape = argument.view.shape;
  for (int axis = shape.rank() - count; axis < shape.rank(); ++axis) {
    if (shape[axis] < 1 || shape[axis] > kLargest) {
      refuse(argument.op, std::string(argument.name) + " must have " + names +
                              " in [1,2^31), got shape " + to_string(shape));
    }
  }
}

void check_activation_dtype(const Argument& argument) {
  const DType dtype = argument.view.dtype;
  const bool fp32_here = argument.view.device.type == DeviceType::kCpu;
  if (dtype == DType::kBFloat16 || dtype == DType::kFloat16) return;
  if (fp32_here && dtype == DType::kFloat32) return;
  refuse(argument.op, std::string(argument.name) + " must have dtype bf16 or fp16" +
                          (fp32_here ? " or fp32" : "") + " on " + to_string(argument.view.device) +
                          ", got " + to_string(dtype));
}

void check_activation(const Argument& argument, const char* axes, const Dims& shape, DType dtype,
                      Device device) {
  check_shape(argument, axes, shape);
  check_dtype(argument, dtype);
  check_device(argument, device);
  check_data(argument);
  check_alignment(argument);
  check_unit_innermost_stride(argument);
}

void check_contiguous_operand(const Argument& argument, const char* axes, const Dims& shape,
                              DType dtype, Device device) {
  check_shape(argument, axes, shape);
  check_dtype(argument, dtype);
  check_device(argument, device);
  check_data(argument);
  check_alignment(argument);
  check_contiguous(argument);
}

SequenceOffsets check_sequences(const Argument& cu_seqlens, std::int64_t B, Device device) {
  const char* op = cu_seqlens.op;
  if (B != 1) refuse(op, "cu_seqlens needs B = 1, got B = " + std::to_string(B));
  check_rank(cu_seqlens, "[N+1]", 1);
  const std::int64_t length = cu_seqlens.view.shape[0];
  if (length < 1) refuse(op, "cu_seqlens must have shape [N+1] with N >= 0, got [0]");
  check_contiguous_operand(cu_seqlens, "[N+1]", {length}, DType::kInt32, device);
  return {length - 1, static_cast<const std::int32_t*>(cu_seqlens.view.data)};
}

void check_outputs(const Arguments& outputs, const Arguments& inputs) {
  const std::vector<Argument>& list = outputs.list();
  for (std::size_t i = 0; i < list.size(); ++i) {
    check_no_self_overlap(list[i]);
    for (const Argument& input : inputs.list()) check_disjoint(list[i], input);
    for (std::size_t j = 0; j < i; ++j) check_disjoint(list[i], list[j]);
  }
}

void check_device_type(const char* op, Device tensors, const DeviceProperties& device) {
  if (tensors.type == device.type) return;
  refuse(op, "device must be of the tensors' type, " + to_string(tensors) + ", got " + device.name);
}

}  // namespace tandem
