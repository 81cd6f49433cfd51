// What every op's call from torch needs: its tensors as views, its stream and workspace, its errors
// as torch passes them on.
#pragma once

#include <dlfcn.h>
#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>

#include <cstdint>
#include <optional>
#include <span>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "tandem/tandem.h"

namespace tandem::extension {

using ::torch::headeronly::ScalarType;
using ::torch::stable::Tensor;
using OptionalTensor = std::optional<Tensor>;

/// Returns torch's current stream on the device.
inline Stream current_stream(Device device) {
  if (device.type == DeviceType::kCpu) return {};
  using GetStream = AOTITorchError (*)(std::int32_t, void**);
  // why looked up: a CPU-only torch lacks it, and the extension must load there too. Torch's
  // libraries are not in the global scope, so that dlsym needs the handle of the one that is
  // loaded.
  static const auto get_stream = [] {
    void* library = dlopen("libtorch_cuda.so", RTLD_NOW | RTLD_NOLOAD);
    return reinterpret_cast<GetStream>(
        library ? dlsym(library, "aoti_torch_get_current_cuda_stream") : nullptr);
  }();
  if (!get_stream) throw std::runtime_error("[tandem] this torch does not say its CUDA stream");
  Stream stream;
  if (get_stream(device.index, &stream.handle) != AOTI_TORCH_SUCCESS) {
    throw std::runtime_error("[tandem] torch failed to say its stream on " + to_string(device));
  }
  return stream;
}

/// One call of an op. Owns what must outlive it: copies of inputs, and the workspace.
class Call {
 public:
  static constexpr const char* kActivations = "bf16, fp16 or fp32";

  explicit Call(const char* op) : op_(op) {}

  /// Views a tensor; messages name the argument and the dtypes that it may have.
  TensorView view(const char* name, const char* dtypes, const Tensor& tensor) const {
    const auto rank = static_cast<std::size_t>(tensor.dim());
    if (rank > Dims::kMaxRank) {
      refuse(name, "have at most " + std::to_string(Dims::kMaxRank) + " axes, got " +
                       std::to_string(rank));
    }
    const auto dims = [rank](const std::int64_t* values) {
      return Dims(std::span<const std::int64_t>(values, rank));
    };
    return {tensor.data_ptr(), dtype_of(name, dtypes, tensor), dims(tensor.sizes().data()),
            dims(tensor.strides().data()), device_of(name, tensor)};
  }

  std::optional<TensorView> optional_view(const char* name, const char* dtypes,
                                          const OptionalTensor& tensor) const {
    return tensor ? std::optional(view(name, dtypes, *tensor)) : std::nullopt;
  }

  // Inputs of layouts that the library refuses are copied here and not in Python, because only here
  // the strides are those of the call: a compiler may have changed them.

  /// Views an activation: any strides, the innermost 1; else a copy.
  TensorView activations(const char* name, const Tensor& tensor) {
    const std::int64_t last = tensor.dim() - 1;
    const bool fits = last < 0 || tensor.size(last) <= 1 || tensor.stride(last) == 1;
    return view(name, kActivations, fits ? tensor : keep(torch::stable::contiguous(tensor)));
  }

  std::optional<TensorView> optional_activations(const char* name, const OptionalTensor& tensor) {
    return tensor ? std::optional(activations(name, *tensor)) : std::nullopt;
  }

  std::optional<TensorView> state(const char* name, const OptionalTensor& tensor) {
    return contiguous(name, "fp32", tensor);
  }

  std::optional<TensorView> cu_seqlens(const OptionalTensor& tensor) {
    const bool fits = !tensor || tensor->scalar_type() != ScalarType::Long;
    return contiguous("cu_seqlens", "int32 or int64",
                      fits ? tensor : keep(torch::stable::to(*tensor, ScalarType::Int)));
  }

  /// Makes a tensor like `input`, when there is one and its gradient is wanted, and sets the
  /// argument.
  OptionalTensor gradient(bool wanted, const char* name, const OptionalTensor& input,
                          std::optional<TensorView>& argument) const {
    OptionalTensor output;
    if (!wanted || !input) return output;
    output = torch::stable::new_empty(*input, input->sizes());
    argument = view(name, kActivations, *output);
    return output;
  }

  Context context(Device device) const {
    Context context;
    if (built_with_cuda()) context.stream = current_stream(device);
    return context;
  }

  /// Returns the stream and a workspace, allocated like `tensor`, which is on the device.
  template <class Args>
  Context context(Device device, const Tensor& tensor, const Args& args,
                  std::size_t (*workspace_bytes)(const Args&, const DeviceProperties&)) {
    Context context = this->context(device);
    if (device.type == DeviceType::kCpu || !built_with_cuda()) return context;
    const std::size_t bytes = workspace_bytes(args, device_properties(device));
    if (bytes > 0) {
      // Torch's allocator hands the memory out again only to later work of the same stream.
      const Tensor scratch = keep(
          torch::stable::new_empty(tensor, {static_cast<std::int64_t>(bytes)}, ScalarType::Byte));
      context.workspace = {scratch.data_ptr(), bytes};
    }
    return context;
  }

 private:
  [[noreturn]] void refuse(const char* name, const std::string& text) const {
    throw InvalidArgument("[" + std::string(op_) + "] " + name + " must " + text);
  }

  DType dtype_of(const char* name, const char* dtypes, const Tensor& tensor) const {
    switch (tensor.scalar_type()) {
      case ScalarType::BFloat16: return DType::kBFloat16;
      case ScalarType::Half: return DType::kFloat16;
      case ScalarType::Float: return DType::kFloat32;
      case ScalarType::Int: return DType::kInt32;
      default:
        refuse(name,
               "have dtype " + std::string(dtypes) + ", got " + toString(tensor.scalar_type()));
    }
  }

  Device device_of(const char* name, const Tensor& tensor) const {
    if (tensor.is_cpu()) return Device::cpu();
    if (tensor.is_cuda()) return Device::cuda(tensor.get_device_index());
    refuse(name, "be on the CPU or a CUDA device");
  }

  std::optional<TensorView> contiguous(const char* name, const char* dtypes,
                                       const OptionalTensor& tensor) {
    const bool fits = !tensor || tensor->is_contiguous();
    return optional_view(name, dtypes, fits ? tensor : keep(torch::stable::contiguous(*tensor)));
  }

  Tensor keep(Tensor tensor) { return kept_.emplace_back(std::move(tensor)); }

  const char* op_;
  std::vector<Tensor> kept_;
};

/// Returns how many states a call has: cu_seqlens' sequences, or B. Any shape will do here: the
/// library refuses wrong ones later.
inline std::int64_t sequences(const Tensor& activations, const OptionalTensor& cu_seqlens) {
  const bool lists = cu_seqlens && cu_seqlens->dim() == 1 && cu_seqlens->size(0) > 0;
  return lists ? cu_seqlens->size(0) - 1 : activations.size(0);
}

/// Calls the function of an op as torch wants it. Torch makes a RuntimeError of every exception
/// (before 2.15 some become ValueError); tandem/_extension.py knows how these texts begin, and
/// raises what they say.
template <auto function>
void boxed(StableIValue* stack, std::uint64_t arguments, std::uint64_t outputs) {
  try {
    TORCH_BOX(function)(stack, arguments, outputs);
  } catch (const InvalidArgument& error) {
    throw std::runtime_error(std::string("ValueError: ") + error.what());
  } catch (const Unsupported& error) {
    throw std::runtime_error(std::string("NotImplementedError: ") + error.what());
  }
}

}  // namespace tandem::extension
