// Tandem's ops for torch's dispatcher. The only file that sees torch, and of torch only its stable
// ABI: one build loads in torch 2.10 and every later one, with or without CUDA.
#include <dlfcn.h>
#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>

#include <cstdint>
#include <optional>
#include <span>
#include <stdexcept>
#include <string>
#include <tuple>
#include <vector>

#include "tandem/tandem.h"

namespace {

using tandem::TensorView;
using torch::headeronly::ScalarType;
using torch::stable::Tensor;
using OptionalTensor = std::optional<Tensor>;

// Torch makes a RuntimeError of every exception (before 2.15 some become ValueError).
// tandem/_extension.py knows how these texts begin, and raises what they say.
template <class Call>
auto translate_errors(const Call& call) {
  try {
    return call();
  } catch (const tandem::InvalidArgument& error) {
    throw std::runtime_error(std::string("ValueError: ") + error.what());
  } catch (const tandem::Unsupported& error) {
    throw std::runtime_error(std::string("NotImplementedError: ") + error.what());
  }
}

/// A tensor argument, for its messages.
struct Argument {
  const char* op;
  const char* name;
  const char* dtypes;  ///< that it may have
  const Tensor& tensor;

  [[noreturn]] void refuse(const std::string& text) const {
    throw tandem::InvalidArgument("[" + std::string(op) + "] " + name + " must " + text);
  }
};

tandem::DType dtype_of(const Argument& argument) {
  switch (argument.tensor.scalar_type()) {
    case ScalarType::BFloat16: return tandem::DType::kBFloat16;
    case ScalarType::Half: return tandem::DType::kFloat16;
    case ScalarType::Float: return tandem::DType::kFloat32;
    case ScalarType::Int: return tandem::DType::kInt32;
    default:
      argument.refuse("have dtype " + std::string(argument.dtypes) + ", got " +
                      toString(argument.tensor.scalar_type()));
  }
}

tandem::Device device_of(const Argument& argument) {
  if (argument.tensor.is_cpu()) return tandem::Device::cpu();
  if (argument.tensor.is_cuda()) return tandem::Device::cuda(argument.tensor.get_device_index());
  argument.refuse("be on the CPU or a CUDA device");
}

TensorView view(const Argument& argument) {
  const Tensor& tensor = argument.tensor;
  const auto rank = static_cast<std::size_t>(tensor.dim());
  if (rank > tandem::Dims::kMaxRank) {
    argument.refuse("have at most " + std::to_string(tandem::Dims::kMaxRank) + " axes, got " +
                    std::to_string(rank));
  }
  const auto dims = [rank](const std::int64_t* values) {
    return tandem::Dims(std::span<const std::int64_t>(values, rank));
  };
  return {tensor.data_ptr(), dtype_of(argument), dims(tensor.sizes().data()),
          dims(tensor.strides().data()), device_of(argument)};
}

// Layouts that the library refuses are copied. Here and not in Python, because only here the
// strides are those of the call: a compiler may have changed them.

Tensor with_unit_innermost_stride(const Tensor& tensor) {
  const std::int64_t last = tensor.dim() - 1;
  if (last < 0 || tensor.size(last) <= 1 || tensor.stride(last) == 1) return tensor;
  return torch::stable::contiguous(tensor);
}

std::optional<Tensor> contiguous(const std::optional<Tensor>& tensor) {
  if (!tensor || tensor->is_contiguous()) return tensor;
  return torch::stable::contiguous(*tensor);
}

std::optional<Tensor> as_int32(const std::optional<Tensor>& tensor) {
  if (!tensor || tensor->scalar_type() != ScalarType::Long) return tensor;
  return torch::stable::to(*tensor, ScalarType::Int);
}

/// torch's current stream on the device.
tandem::Stream current_stream(tandem::Device device) {
  if (device.type == tandem::DeviceType::kCpu) return {};
  using GetStream = AOTITorchError (*)(std::int32_t, void**);
  // why looked up: a CPU-only torch lacks it, and this file must load there too. Torch's libraries
  // are not in the global scope, so that dlsym needs the handle of the one that is loaded.
  static const auto get_stream = [] {
    void* library = dlopen("libtorch_cuda.so", RTLD_NOW | RTLD_NOLOAD);
    return reinterpret_cast<GetStream>(
        library ? dlsym(library, "aoti_torch_get_current_cuda_stream") : nullptr);
  }();
  if (!get_stream) throw std::runtime_error("[tandem] this torch does not say its CUDA stream");
  tandem::Stream stream;
  if (get_stream(device.index, &stream.handle) != AOTI_TORCH_SUCCESS) {
    throw std::runtime_error("[tandem] torch failed to say its stream on " + to_string(device));
  }
  return stream;
}

/// The context of a call on `device`, where `tensor` lives. `scratch` owns the workspace; torch's
/// allocator hands its memory out again only to later work of the same stream.
template <class WorkspaceBytes>
tandem::Context context(const Tensor& tensor, tandem::Device device,
                        const WorkspaceBytes& workspace_bytes, std::optional<Tensor>& scratch) {
  tandem::Context context;
  if (device.type == tandem::DeviceType::kCpu || !tandem::built_with_cuda()) return context;
  context.stream = current_stream(device);
  const std::size_t bytes = workspace_bytes(tandem::device_properties(device));
  if (bytes > 0) {
    scratch =
        torch::stable::new_empty(tensor, {static_cast<std::int64_t>(bytes)}, ScalarType::Byte);
    context.workspace = {scratch->data_ptr(), bytes};
  }
  return context;
}

constexpr const char* kActivations = "bf16, fp16 or fp32";

std::optional<TensorView> optional_view(const char* op, const char* name, const char* dtypes,
                                        const std::optional<Tensor>& tensor) {
  return tensor ? std::optional(view({op, name, dtypes, *tensor})) : std::nullopt;
}

/// How many states gla has: cu_seqlens', or B. Whatever shapes the library will refuse.
std::int64_t sequences(const Tensor& keys, const std::optional<Tensor>& cu_seqlens) {
  const bool lists = cu_seqlens && cu_seqlens->dim() == 1 && cu_seqlens->size(0) > 0;
  return lists ? cu_seqlens->size(0) - 1 : keys.size(0);
}

std::tuple<Tensor, std::optional<Tensor>> gla_forward_checked(
    const Tensor& q_in, const Tensor& k_in, const Tensor& v_in,
    const std::optional<Tensor>& log_decay, std::optional<double> scale,
    const std::optional<Tensor>& initial_state_in, bool output_final_state,
    const std::optional<Tensor>& cu_seqlens_in) {
  constexpr const char* kOp = "gla_forward";
  const Tensor q = with_unit_innermost_stride(q_in);
  const Tensor k = with_unit_innermost_stride(k_in);
  const Tensor v = with_unit_innermost_stride(v_in);
  const std::optional<Tensor> initial_state = contiguous(initial_state_in);
  const std::optional<Tensor> cu_seqlens = contiguous(as_int32(cu_seqlens_in));

  tandem::GlaForwardArgs args;
  args.q = view({kOp, "q", kActivations, q});
  args.k = view({kOp, "k", kActivations, k});
  args.v = view({kOp, "v", kActivations, v});
  args.log_decay = optional_view(kOp, "log_decay", "fp32", log_decay);
  args.scale = scale;
  args.initial_state = optional_view(kOp, "initial_state", "fp32", initial_state);
  args.cu_seqlens = optional_view(kOp, "cu_seqlens", "int32 or int64", cu_seqlens);

  const Tensor o = torch::stable::new_empty(v, v.sizes());
  args.o = view({kOp, "o", kActivations, o});
  std::optional<Tensor> final_state;
  // Of another rank the library refuses q or v; there is no state to allocate.
  if (output_final_state && q.dim() == 4 && v.dim() == 4) {
    final_state = torch::stable::new_empty(
        v, {sequences(q, cu_seqlens), v.size(2), q.size(3), v.size(3)}, ScalarType::Float);
    args.final_state = view({kOp, "final_state", "fp32", *final_state});
  }
  std::optional<Tensor> scratch;
  const auto workspace_bytes = [&](const tandem::DeviceProperties& device) {
    return tandem::gla_forward_workspace_bytes(args, device);
  };
  tandem::gla_forward(args, context(q, args.q.device, workspace_bytes, scratch));
  return {o, final_state};
}

std::tuple<Tensor, std::optional<Tensor>> gla_forward(
    const Tensor& q, const Tensor& k, const Tensor& v, const std::optional<Tensor>& log_decay,
    std::optional<double> scale, const std::optional<Tensor>& initial_state,
    bool output_final_state, const std::optional<Tensor>& cu_seqlens) {
  return translate_errors([&] {
    return gla_forward_checked(q, k, v, log_decay, scale, initial_state, output_final_state,
                               cu_seqlens);
  });
}

std::tuple<Tensor, Tensor> gla_state_forward_checked(const Tensor& k_in, const Tensor& v_in,
                                                     const std::optional<Tensor>& log_decay,
                                                     const std::optional<Tensor>& cu_seqlens_in) {
  constexpr const char* kOp = "gla_state_forward";
  const Tensor k = with_unit_innermost_stride(k_in);
  const Tensor v = with_unit_innermost_stride(v_in);
  const std::optional<Tensor> cu_seqlens = contiguous(as_int32(cu_seqlens_in));
  tandem::GlaStateForwardArgs args;
  args.k = view({kOp, "k", kActivations, k});
  args.v = view({kOp, "v", kActivations, v});
  args.log_decay = optional_view(kOp, "log_decay", "fp32", log_decay);
  args.cu_seqlens = optional_view(kOp, "cu_seqlens", "int32 or int64", cu_seqlens);

  // Of another rank the library refuses k or v; there is nothing to allocate.
  const bool ranks = k.dim() == 4 && v.dim() == 4;
  const std::int64_t N = ranks ? sequences(k, cu_seqlens) : 0, H = ranks ? v.size(2) : 0;
  const Tensor state = torch::stable::new_empty(
      v, {N, H, ranks ? k.size(3) : 0, ranks ? v.size(3) : 0}, ScalarType::Float);
  const Tensor total = torch::stable::new_empty(v, {N, H}, ScalarType::Float);
  args.state = view({kOp, "state", "fp32", state});
  args.total_log_decay = view({kOp, "total_log_decay", "fp32", total});
  std::optional<Tensor> scratch;
  const auto workspace_bytes = [&](const tandem::DeviceProperties& device) {
    return tandem::gla_state_forward_workspace_bytes(args, device);
  };
  tandem::gla_state_forward(args, context(k, args.k.device, workspace_bytes, scratch));
  return {state, total};
}

std::tuple<Tensor, Tensor> gla_state_forward(const Tensor& k, const Tensor& v,
                                             const std::optional<Tensor>& log_decay,
                                             const std::optional<Tensor>& cu_seqlens) {
  return translate_errors([&] { return gla_state_forward_checked(k, v, log_decay, cu_seqlens); });
}

Tensor gla_step_checked(const Tensor& q_in, const Tensor& k_in, const Tensor& v_in,
                        const std::optional<Tensor>& log_decay, std::optional<double> scale,
                        const Tensor& state) {
  constexpr const char* kOp = "gla_step";
  const Tensor q = with_unit_innermost_stride(q_in);
  const Tensor k = with_unit_innermost_stride(k_in);
  const Tensor v = with_unit_innermost_stride(v_in);
  tandem::GlaStepArgs args;
  args.q = view({kOp, "q", kActivations, q});
  args.k = view({kOp, "k", kActivations, k});
  args.v = view({kOp, "v", kActivations, v});
  args.log_decay = optional_view(kOp, "log_decay", "fp32", log_decay);
  args.scale = scale;
  args.state = view({kOp, "state", "fp32 or bf16", state});
  const Tensor o = torch::stable::new_empty(v, v.sizes());
  args.o = view({kOp, "o", kActivations, o});
  tandem::Context context;
  if (tandem::built_with_cuda()) context.stream = current_stream(args.q.device);
  tandem::gla_step(args, context);
  return o;
}

Tensor gla_step(const Tensor& q, const Tensor& k, const Tensor& v,
                const std::optional<Tensor>& log_decay, std::optional<double> scale,
                const Tensor& state) {
  return translate_errors([&] { return gla_step_checked(q, k, v, log_decay, scale, state); });
}

using GlaGradients =
    std::tuple<OptionalTensor, OptionalTensor, OptionalTensor, OptionalTensor, OptionalTensor>;

GlaGradients gla_backward_checked(const Tensor& q_in, const Tensor& k_in, const Tensor& v_in,
                                  const OptionalTensor& log_decay, std::optional<double> scale,
                                  const OptionalTensor& initial_state_in,
                                  const OptionalTensor& cu_seqlens_in, const Tensor& d_o_in,
                                  const OptionalTensor& d_final_state_in, bool wants_dq,
                                  bool wants_dk, bool wants_dv, bool wants_d_log_decay,
                                  bool wants_d_initial_state) {
  constexpr const char* kOp = "gla_backward";
  const Tensor q = with_unit_innermost_stride(q_in);
  const Tensor k = with_unit_innermost_stride(k_in);
  const Tensor v = with_unit_innermost_stride(v_in);
  const Tensor d_o = with_unit_innermost_stride(d_o_in);
  const OptionalTensor initial_state = contiguous(initial_state_in);
  const OptionalTensor cu_seqlens = contiguous(as_int32(cu_seqlens_in));
  const OptionalTensor d_final_state = contiguous(d_final_state_in);

  tandem::GlaBackwardArgs args;
  args.q = view({kOp, "q", kActivations, q});
  args.k = view({kOp, "k", kActivations, k});
  args.v = view({kOp, "v", kActivations, v});
  args.log_decay = optional_view(kOp, "log_decay", "fp32", log_decay);
  args.scale = scale;
  args.initial_state = optional_view(kOp, "initial_state", "fp32", initial_state);
  args.cu_seqlens = optional_view(kOp, "cu_seqlens", "int32 or int64", cu_seqlens);
  args.d_o = view({kOp, "d_o", kActivations, d_o});
  args.d_final_state = optional_view(kOp, "d_final_state", "fp32", d_final_state);

  /// A new tensor like `input`, when it is wanted.
  const auto gradient = [&](bool wanted, const char* name, const OptionalTensor& input,
                            std::optional<TensorView>& argument) {
    OptionalTensor output;
    if (!wanted || !input) return output;
    output = torch::stable::new_empty(*input, input->sizes());
    argument = view({kOp, name, kActivations, *output});
    return output;
  };
  GlaGradients gradients = {
      gradient(wants_dq, "dq", q, args.dq), gradient(wants_dk, "dk", k, args.dk),
      gradient(wants_dv, "dv", v, args.dv),
      gradient(wants_d_log_decay, "d_log_decay", log_decay, args.d_log_decay),
      gradient(wants_d_initial_state, "d_initial_state", initial_state, args.d_initial_state)};
  OptionalTensor scratch;
  const auto workspace_bytes = [&](const tandem::DeviceProperties& device) {
    return tandem::gla_backward_workspace_bytes(args, device);
  };
  tandem::gla_backward(args, context(q, args.q.device, workspace_bytes, scratch));
  return gradients;
}

GlaGradients gla_backward(const Tensor& q, const Tensor& k, const Tensor& v,
                          const OptionalTensor& log_decay, std::optional<double> scale,
                          const OptionalTensor& initial_state, const OptionalTensor& cu_seqlens,
                          const Tensor& d_o, const OptionalTensor& d_final_state, bool wants_dq,
                          bool wants_dk, bool wants_dv, bool wants_d_log_decay,
                          bool wants_d_initial_state) {
  return translate_errors([&] {
    return gla_backward_checked(q, k, v, log_decay, scale, initial_state, cu_seqlens, d_o,
                                d_final_state, wants_dq, wants_dk, wants_dv, wants_d_log_decay,
                                wants_d_initial_state);
  });
}

}  // namespace

STABLE_TORCH_LIBRARY(tandem, m) {
  m.def(
      "gla_forward(Tensor q, Tensor k, Tensor v, Tensor? log_decay, float? scale, "
      "Tensor? initial_state, bool output_final_state, Tensor? cu_seqlens) -> (Tensor, Tensor?)");
  m.def(
      "gla_state_forward(Tensor k, Tensor v, Tensor? log_decay, Tensor? cu_seqlens) "
      "-> (Tensor, Tensor)");
  m.def(
      "gla_step(Tensor q, Tensor k, Tensor v, Tensor? log_decay, float? scale, Tensor(a!) state) "
      "-> Tensor");
  m.def(
      "gla_backward(Tensor q, Tensor k, Tensor v, Tensor? log_decay, float? scale, "
      "Tensor? initial_state, Tensor? cu_seqlens, Tensor d_o, Tensor? d_final_state, "
      "bool wants_dq, bool wants_dk, bool wants_dv, bool wants_d_log_decay, "
      "bool wants_d_initial_state) -> (Tensor?, Tensor?, Tensor?, Tensor?, Tensor?)");
}

STABLE_TORCH_LIBRARY_IMPL(tandem, CPU, m) {
  m.impl("gla_forward", TORCH_BOX(&gla_forward));
  m.impl("gla_state_forward", TORCH_BOX(&gla_state_forward));
  m.impl("gla_backward", TORCH_BOX(&gla_backward));
  m.impl("gla_step", TORCH_BOX(&gla_step));
}

STABLE_TORCH_LIBRARY_IMPL(tandem, CUDA, m) {
  m.impl("gla_forward", TORCH_BOX(&gla_forward));
  m.impl("gla_state_forward", TORCH_BOX(&gla_state_forward));
  m.impl("gla_backward", TORCH_BOX(&gla_backward));
  m.impl("gla_step", TORCH_BOX(&gla_step));
}

/// For tandem/_extension.py, which calls it through ctypes: "" where a CUDA device can be used,
/// else why not.
extern "C" __attribute__((visibility("default"))) const char* tandem_cuda_unavailable_reason() {
  static const std::string reason = tandem::cuda_unavailable_reason();
  return reason.c_str();
}
