// Checks that the ops share; each throws InvalidArgument "[op] argument expected, got".
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "core/check.h"
#include "tandem/device.h"
#include "tandem/tensor.h"

namespace tandem {

/// Checks that the `count` innermost extents, which `names` names, are in [1,2^31).
void check_extents(const Argument& argument, const char* names, int count);

/// Checks the dtype of an op with matrix products: bf16 or fp16, on the CPU also fp32.
void check_activation_dtype(const Argument& argument);

/// Checks everything that activations (any strides, the innermost 1) of one call share.
void check_activation(const Argument& argument, const char* axes, const Dims& shape, DType dtype,
                      Device device);

/// Checks everything that a contiguous operand (states, cu_seqlens) must satisfy.
void check_contiguous_operand(const Argument& argument, const char* axes, const Dims& shape,
                              DType dtype, Device device);

/// cu_seqlens after its checks: `data` has N + 1 offsets, whose values have not been read.
struct SequenceOffsets {
  std::int64_t N = 0;
  const std::int32_t* data = nullptr;
};

/// Checks cu_seqlens beside activations of B batches.
SequenceOffsets check_sequences(const Argument& cu_seqlens, std::int64_t B, Device device);

/// Arguments of a call, absent ones left out, for check_outputs.
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

/// Checks that no output overlaps itself, an input or another output.
void check_outputs(const Arguments& outputs, const Arguments& inputs);

/// Checks, in a workspace query, that the properties are of a device of the tensors' type.
void check_device_type(const char* op, Device tensors, const DeviceProperties& device);

}  // namespace tandem
