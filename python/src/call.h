// A call from torch by its table: tensors as views, outputs, torch's stream and memory.
#pragma once

#include <dlfcn.h>
#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdint>
#include <limits>
#include <memory>
#include <optional>
#include <span>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "binding.h"
#include "core/real.h"
#include "ops/call.h"
#include "tandem/tandem.h"

namespace tandem::extension {

using ::torch::headeronly::ScalarType;
using ::torch::stable::Tensor;
using OptionalTensor = std::optional<Tensor>;

/// Whether all calls from Python are batch-invariant: one switch, since gradients are computed in
/// threads of torch's.
inline std::atomic<bool> batch_invariant = false;

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

inline ScalarType scalar_type(DType dtype) {
  switch (dtype) {
    case DType::kBFloat16: return ScalarType::BFloat16;
    case DType::kFloat16: return ScalarType::Half;
    case DType::kFloat64: return ScalarType::Double;
    case DType::kInt32: return ScalarType::Int;
    case DType::kFloat32: break;
  }
  return ScalarType::Float;
}

/// Torch failed to make a tensor, which it does where memory is out.
struct OutOfMemory : std::runtime_error {
  using std::runtime_error::runtime_error;
};

/// Makes a contiguous tensor. why not new_empty: torch looks that up by its name at every call.
inline Tensor empty(const Dims& shape, ScalarType type, Device device) {
  const Dims strides = TensorView::contiguous(nullptr, DType::kFloat32, shape).strides;
  const bool on_cpu = device.type == DeviceType::kCpu;
  AtenTensorHandle handle = nullptr;
  if (aoti_torch_empty_strided(
          shape.rank(), shape.begin(), strides.begin(), static_cast<std::int32_t>(type),
          on_cpu ? aoti_torch_device_type_cpu() : aoti_torch_device_type_cuda(), device.index,
          &handle) != AOTI_TORCH_SUCCESS) {
    throw OutOfMemory("[tandem] torch failed to make a tensor " + to_string(shape) + " on " +
                      to_string(device));
  }
  return Tensor(handle);
}

/// The dtypes that a row's tensors may have, as refusals of others name them.
inline const char* dtypes_of(const Parameter& row) {
  switch (row.element) {
    case Element::kFp32: return "fp32 or fp64";
    case Element::kFp32OrBf16: return "fp32, bf16 or fp64";
    case Element::kOffsets:
    case Element::kPositions: return "int32 or int64";
    default: return "bf16, fp16, fp32 or fp64";
  }
}

/// int64 as int32, with what does not fit at the ends of int32: out of any sequence or table too.
/// Like all of a call, it does not wait for the GPU.
inline Tensor narrowed(Tensor offsets) {
  using Limits = std::numeric_limits<std::int32_t>;
  // why on the CPU: torch passes a tensor of one value there to its GPU kernels by value.
  static std::array<std::int64_t, 2> limits = {Limits::max(), Limits::min()};
  constexpr std::array<const char*, 2> kOps = {"aten::minimum", "aten::maximum"};
  const torch::stable::Device cpu(torch::headeronly::DeviceType::CPU);
  for (std::size_t i = 0; i < limits.size(); ++i) {
    const Tensor limit = torch::stable::from_blob(&limits[i], {}, {}, cpu, ScalarType::Long);
    std::array<StableIValue, 2> stack = {torch::stable::detail::from(offsets),
                                         torch::stable::detail::from(limit)};
    // why not torch's macro around it: its name differs between the headers of 2.11 and of 2.15.
    if (torch_call_dispatcher(kOps[i], "", stack.data(), TORCH_ABI_VERSION) != AOTI_TORCH_SUCCESS) {
      throw std::runtime_error(std::string("[tandem] torch failed to call ") + kOps[i]);
    }
    offsets = torch::stable::detail::to<Tensor>(stack[0]);
  }
  return torch::stable::to(offsets, ScalarType::Int);
}

/// What torch passes as one argument.
struct Value {
  OptionalTensor tensor;
  std::optional<double> number;
  bool flag = false;
};

/// Takes a call's arguments off torch's stack, all of them: values that nobody takes are not freed.
inline std::vector<Value> take_values(const Binding& binding, const StableIValue* stack) {
  using torch::stable::detail::to;
  std::vector<Value> values(binding.arguments.size());
  for (std::size_t i = 0; i < values.size(); ++i) {
    const auto& [row, flag] = binding.arguments[i];
    if (!flag.empty()) {
      if (!binding.is_packed()) values[i].flag = to<bool>(*stack++);
    } else if (row->number) {
      if (!binding.is_packed()) values[i].number = to<std::optional<double>>(*stack++);
    } else if (row->optional) {
      values[i].tensor = to<OptionalTensor>(*stack++);
    } else {
      values[i].tensor = to<Tensor>(*stack++);
    }
  }
  if (!binding.is_packed()) return values;
  const auto given = to<std::vector<std::int64_t>>(stack[0]);
  const auto numbers = to<std::vector<double>>(stack[1]);
  STD_TORCH_CHECK(given.size() == numbers.size(), "[tandem] given and numbers must be as many");
  for (std::size_t i = 0; i < given.size(); ++i) {
    Value& value = values.at(given[i]);
    value.number = numbers[i];
    value.flag = numbers[i] != 0;
  }
  return values;
}

/// Shapes or strides with a time axis of one token behind B, and without it.
inline Dims with_time_axis(const Dims& dims) {
  std::array<std::int64_t, Dims::kMaxRank + 1> values{dims[0], 1};
  std::copy(dims.begin() + 1, dims.end(), values.begin() + 2);
  return Dims(std::span<const std::int64_t>(values.data(), dims.rank() + 1));
}
inline Dims without_time_axis(const Dims& dims) {
  std::array<std::int64_t, Dims::kMaxRank> values{dims[0]};
  std::copy(dims.begin() + 2, dims.end(), values.begin() + 1);
  return Dims(std::span<const std::int64_t>(values.data(), dims.rank() - 1));
}

/// What is known of an argument without data: a compiler traces with such. tandem/_extension.py has
/// the same members.
struct Described {
  std::int32_t given;
  std::int32_t scalar_type;
  std::int32_t on_cuda;
  std::int32_t device_index;
  std::int32_t rank;
  std::int32_t flag;
  double number;
  std::int64_t sizes[Dims::kMaxRank + 1];
  std::int64_t strides[Dims::kMaxRank + 1];
};

/// One call. Owns its arguments and what must outlive it: copies of inputs, and the workspace.
class Call {
 public:
  explicit Call(const Signature& signature) : signature_(signature), args_(signature.make_args()) {}

  /// Sets an input.
  void set(const Parameter& row, const Value& value) {
    if (value.number) row.set_value(args_.get(), *value.number);
    // why here: torch would print its C++ frames for one without storage.
    if (value.tensor && !value.tensor->defined()) refuse(row, "be a tensor, got None");
    if (value.tensor) row.set_view(args_.get(), view(row, readable(row, *value.tensor)));
  }
  void set(const Parameter& row, double number) { row.set_value(args_.get(), number); }
  /// Sets an input to a tensor of which no copy is wanted; false where one is.
  bool set_readable(const Parameter& row, const TensorView& view) {
    if (row.role == Role::kInput && (!is_readable(row, view) || row.better_copied(view))) {
      return false;
    }
    row.set_view(args_.get(), view);
    return true;
  }
  /// Takes the time axis of one token off an input of a step, whose outputs then get it. False
  /// where the table has no such rank, or some inputs have the axis and others do not.
  bool take_time_axis(const Parameter& row, TensorView& view) {
    const int rank = view.shape.rank();
    for (const Axes& axes : row.axes) {
      const bool is_batched = signature_.axes()[axes.index[0]] == "B";
      const bool has = is_batched && rank == axes.rank + 1 && view.shape[1] == 1;
      if (!has && rank != axes.rank) continue;
      if (!is_batched) return true;
      if (has) {
        view.shape = without_time_axis(view.shape);
        view.strides = without_time_axis(view.strides);
      }
      if (!has_time_axis_) has_time_axis_ = has;
      return has == *has_time_axis_;
    }
    return false;
  }
  void set(const Parameter& row, const Described& value) {
    if (!value.given) return;
    if (row.number) return row.set_value(args_.get(), value.number);
    check_rank(row, value.rank);
    // As readable() would have it.
    const auto given = static_cast<ScalarType>(value.scalar_type);
    const bool narrows = is_int32(row.element) && given == ScalarType::Long;
    const DType dtype = dtype_of(row, narrows ? ScalarType::Int : given);
    const auto rank = static_cast<std::size_t>(value.rank);
    const Dims shape(std::span<const std::int64_t>(value.sizes, rank));
    const Device device = value.on_cuda ? Device::cuda(value.device_index) : Device::cpu();
    TensorView view = TensorView::contiguous(nowhere(), dtype, shape, device);
    if (row.role != Role::kInput) view.strides = Dims({value.strides, rank});
    row.set_view(args_.get(), view);
  }

  /// Makes the outputs that are asked for and sets them; in a call of described tensors there is
  /// nothing behind them. `is_set` says of an argument's place whether it is a flag that is set.
  template <class IsSet>
  std::vector<OptionalTensor> outputs(const Binding& binding, const IsSet& is_set) {
    std::vector<OptionalTensor> made;
    made.reserve(binding.results.size());
    for (const Result& result : binding.results) {
      const bool wanted = result.flag < 0 || is_set(result.flag);
      const bool fp32 = result.fp32_flag >= 0 && is_set(result.fp32_flag);
      made.push_back(wanted ? output(result, fp32) : std::nullopt);
    }
    return made;
  }

  /// Runs the call on torch's stream, with a workspace from torch.
  void run() {
    const Device device = signature_.device(args_.get());
    Context context;
    context.batch_invariant = batch_invariant;
    if (built_with_cuda()) context.stream = current_stream(device);
    context.allocate = [&](std::size_t bytes) {
      // Torch's allocator hands the memory out again only to later work of the same stream.
      return keep(empty({static_cast<std::int64_t>(bytes)}, ScalarType::Byte, device)).data_ptr();
    };
    tandem::run(signature_, args_.get(), context);
  }

  /// Throws what run() would, as far as it does not depend on the tensors' values. An H200 stands
  /// for a GPU that is not here.
  void check() const {
    const Device device = signature_.device(args_.get());
    DeviceProperties properties;
    if (device.type == DeviceType::kCuda) {
      properties = cuda_device_count() > 0 ? device_properties(device) : DeviceProperties::h200();
    }
    workspace_bytes(signature_, args_.get(), properties, batch_invariant);
  }

 private:
  [[noreturn]] void refuse(const Parameter& row, const std::string& text) const {
    throw InvalidArgument("[" + std::string(signature_.name()) + "] " + row.name + " must " + text);
  }

  /// Whether the library takes an input's layout.
  static bool is_readable(const Parameter& row, const TensorView& view) {
    const int rank = view.shape.rank();
    const int dense = row.layout == Layout::kContiguous ? rank
                      : row.layout == Layout::kRows     ? std::min(rank, 1)
                                                        : 0;
    std::int64_t stride = 1;
    for (int axis = rank; axis-- > rank - dense;) {
      if (view.shape[axis] > 1 && view.strides[axis] != stride) return false;
      stride *= view.shape[axis];
    }
    return true;
  }

  /// The tensor, or a copy where it has a dtype or layout that the library refuses or reads slowly.
  /// Here and not in Python, because only here the strides are those of the call: a compiler may
  /// have changed them.
  Tensor readable(const Parameter& row, Tensor tensor) {
    if (row.role != Role::kInput) return tensor;
    if (is_int32(row.element) && tensor.scalar_type() == ScalarType::Long) {
      tensor = keep(narrowed(tensor));
    }
    const TensorView given = view(row, tensor);
    if (row.better_copied(given)) {
      // why not contiguous(): it leaves a tensor as it is that only begins at a wrong address.
      Tensor copy = empty(given.shape, tensor.scalar_type(), given.device);
      return keep(torch::stable::copy_(copy, tensor));
    }
    return is_readable(row, given) ? tensor : keep(torch::stable::contiguous(tensor));
  }

  void check_rank(const Parameter& row, std::int64_t rank) const {
    if (rank > Dims::kMaxRank) {
      refuse(row, "have at most " + std::to_string(Dims::kMaxRank) + " axes, got " +
                      std::to_string(rank));
    }
  }

  TensorView view(const Parameter& row, const Tensor& tensor) const {
    check_rank(row, tensor.dim());
    const auto rank = static_cast<std::size_t>(tensor.dim());
    const auto dims = [rank](const std::int64_t* values) {
      return Dims(std::span<const std::int64_t>(values, rank));
    };
    return {tensor.data_ptr(), dtype_of(row, tensor.scalar_type()), dims(tensor.sizes().data()),
            dims(tensor.strides().data()), device_of(row, tensor)};
  }

  DType dtype_of(const Parameter& row, ScalarType type) const {
    switch (type) {
      case ScalarType::BFloat16: return DType::kBFloat16;
      case ScalarType::Half: return DType::kFloat16;
      case ScalarType::Float: return DType::kFloat32;
      case ScalarType::Double: return DType::kFloat64;
      case ScalarType::Int: return DType::kInt32;
      default: refuse(row, "have dtype " + std::string(dtypes_of(row)) + ", got " + toString(type));
    }
  }

  Device device_of(const Parameter& row, const Tensor& tensor) const {
    if (tensor.is_cpu()) return Device::cpu();
    if (tensor.is_cuda()) return Device::cuda(tensor.get_device_index());
    refuse(row, "be on the CPU or a CUDA device");
  }

  /// A gradient there is only with its input.
  OptionalTensor output(const Result& result, bool fp32) {
    for (const auto& [row, source] : result.choices) {
      if (source == nullptr) {
        if (row->made_with && !signature_.find(row->made_with)->view(args_.get())) continue;
        const DType dtype = signature_.dtype(*row, args_.get());
        return make(*row, shape_of(*row), fp32 ? real_dtype(dtype) : dtype);
      }
      const TensorView* input = source->view(args_.get());
      if (input != nullptr) return make(*row, input->shape, input->dtype);
    }
    return std::nullopt;
  }

  Dims shape_of(const Parameter& output) {
    if (extents_.empty()) extents_ = signature_.extents(args_.get());
    // Without a shape the inputs have ranks that the library refuses.
    return signature_.shape(output, args_.get(), extents_).value_or(Dims{0});
  }

  OptionalTensor make(const Parameter& output, const Dims& shape, DType dtype) {
    const Device device = signature_.device(args_.get());
    OptionalTensor tensor;
    if (described_ == 0) {
      const bool has_time_axis = has_time_axis_.value_or(false);
      tensor = empty(has_time_axis ? with_time_axis(shape) : shape, scalar_type(dtype), device);
    }
    void* data = tensor ? tensor->data_ptr() : nowhere();
    output.set_view(args_.get(), TensorView::contiguous(data, dtype, shape, device));
    return tensor;
  }

  /// An address that nobody reads, 16 TiB from every other.
  void* nowhere() { return reinterpret_cast<void*>(++described_ << 44); }

  Tensor keep(Tensor tensor) { return kept_.emplace_back(std::move(tensor)); }

  const Signature& signature_;
  std::shared_ptr<void> args_;
  std::vector<std::int64_t> extents_;
  std::vector<Tensor> kept_;
  std::optional<bool> has_time_axis_;  // of a step's inputs, once one is there
  std::uintptr_t described_ = 0;
};

/// Makes a call of torch's: arguments are taken from the stack, results put there.
inline void make_call(const Binding& binding, StableIValue* stack, std::uint64_t arguments,
                      std::uint64_t results) {
  STD_TORCH_CHECK(arguments == binding.passed() && results == binding.results.size(),
                  "[tandem] torch's schema is not that of the table");
  const std::vector<Value> values = take_values(binding, stack);
  Call call(*binding.signature);
  for (std::size_t i = 0; i < values.size(); ++i) {
    const auto& [row, flag] = binding.arguments[i];
    if (flag.empty()) call.set(*row, values[i]);
  }
  const std::vector<OptionalTensor> outputs =
      call.outputs(binding, [&](int place) { return values[place].flag; });
  call.run();
  for (std::size_t i = 0; i < results; ++i) {
    const bool optional = binding.results[i].row().optional;
    stack[i] = optional ? torch::stable::detail::from(outputs[i])
                        : torch::stable::detail::from(*outputs[i]);
  }
}

/// Throws what a call of these arguments would, in the order of torch's schema.
inline void check_call(const Binding& binding, const Described* arguments) {
  Call call(*binding.signature);
  for (std::size_t i = 0; i < binding.arguments.size(); ++i) {
    if (binding.arguments[i].flag.empty()) call.set(*binding.arguments[i].row, arguments[i]);
  }
  call.outputs(binding, [&](int place) { return arguments[place].flag != 0; });
  call.check();
}

/// Puts the class that Python is to raise before the text of a refusal: torch makes a RuntimeError
/// of every exception (before 2.15 some become ValueError). tandem/_extension.py takes it off.
template <class Function>
void with_class(const Function& function) {
  try {
    function();
  } catch (const InvalidArgument& error) {
    throw std::runtime_error(std::string("ValueError: ") + error.what());
  } catch (const Unsupported& error) {
    throw std::runtime_error(std::string("NotImplementedError: ") + error.what());
  } catch (const OutOfMemory& error) {
    throw std::runtime_error(std::string("OutOfMemoryError: ") + error.what());
  }
}

/// The call of a place among bindings(), as torch wants it: a function of its own.
template <std::size_t place>
void boxed(StableIValue* stack, std::uint64_t arguments, std::uint64_t results) {
  with_class([&] { make_call(bindings()[place], stack, arguments, results); });
}

}  // namespace tandem::extension
