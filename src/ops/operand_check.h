// Checks that the ops share; each throws InvalidArgument "[op] argument expected, got".
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "core/check.h"
#include "tandem/device.h"
#include "tandem/tensor.h"

namespace tandem {

/// The `count` innermost extents, which `names` names: at least 1, and ints.
void check_extents(const Argument& argument, const char* names, int count);

/// bf16 or fp16, on the CPU also fp32: of ops with matrix products.
void check_activation_dtype(const Argument& argument);

/// Everything that activations (any strides, the innermost 1) of one call share.
void check_activation(const Argument& argument, const char* axes, const Dims& shape, DType dtype,
                      Device device);

/// Everything that a contiguous operand (states, cu_seqlens) must satisfy.
void check_contiguous_operand(const Argument& argument, const char* axes, const Dims& shape,
                              DType dtype, Device device);

/// cu_seqlens after its checks: `data` has N + 1 offsets, whose values are not looked at.
struct SequenceOffsets {
  std::int64_t N = 0;
  const std::int32_t* data = nullptr;
};

/// cu_seqlens beside activations of B batches.
SequenceOffsets check_sequences(const Argument& cu_seqlens, std::int64_t B, Device device);

/// The arguments of a call that are there, for check_outputs.
class Arguments {
 public:
  explicit Arguments(const char* op) : op_(op) {}
  void add(const char* name, const TensorView& view) { list_.push_back({op_, name, view}); }
  void add(const char* name, const std::optional<TensorView>& view) {
    if (view) add(name, *view);
  }
  const std::vector<Argument>& list() const { return list_; }

 private:
  const char* op_;
  std::vector<Argument> list_;  // refers to the views
};

/// No output may overlap itself, an input or another output.
void check_outputs(const Arguments& outputs, const Arguments& inputs);

/// Of a workspace query: the properties must be of a device of the tensors' type.
void check_device_type(const char* op, Device tensors, const DeviceProperties& device);

}  // namespace tandem
