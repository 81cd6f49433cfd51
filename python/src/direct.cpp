// A call from Python past torch's dispatcher, whose arguments and results alone take as long as the
// rest of a small call. Tensors are read through torch's DLPack exchange API.
#include <string_view>

#include "call.h"
#include "dlpack.h"
#include "python.h"

namespace tandem::extension {
namespace {

constexpr const char* kCapsule = "tandem.direct";

/// What the calls of a process share, of torch and of Python.
struct Imported {
  const DLPackExchangeAPI* api = nullptr;
  PyObject* tensor_type = nullptr;
  PyObject* parameter_type = nullptr;
  PyObject* is_neg = nullptr;  // the method's name
};
Imported python;

bool has_type(PyObject* object, PyObject* type) {
  PyObject* const own = PyObject_Type(object);
  Py_DecRef(own);
  return own == type;
}

/// Whether it may be a tensor whose signs torch flips only when they are read: a part of a complex
/// conjugate, which bf16 cannot be.
bool flips_signs(PyObject* tensor, DType dtype) {
  if (dtype == DType::kBFloat16) return false;
  PyObject* const answer = PyObject_CallMethodObjArgs(tensor, python.is_neg, nullptr);
  if (answer == nullptr) return true;
  const bool flips = PyObject_IsTrue(answer) != 0;
  Py_DecRef(answer);
  return flips;
}

std::optional<DType> dtype_of(const DLDataType& type) {
  if (type.lanes != 1) return std::nullopt;
  if (type.code == kDLBfloat && type.bits == 16) return DType::kBFloat16;
  if (type.code == kDLFloat && type.bits == 16) return DType::kFloat16;
  if (type.code == kDLFloat && type.bits == 32) return DType::kFloat32;
  if (type.code == kDLInt && type.bits == 32) return DType::kInt32;
  return std::nullopt;
}

/// The view of a tensor; none of what is no plain tensor of torch or what the library refuses.
std::optional<TensorView> view_of(PyObject* object) {
  if (!has_type(object, python.tensor_type) && !has_type(object, python.parameter_type)) {
    return std::nullopt;
  }
  DLTensor tensor;
  if (python.api->dltensor_from_py_object_no_sync(object, &tensor) != 0) return std::nullopt;
  const std::optional<DType> dtype = dtype_of(tensor.dtype);
  const bool on_cuda = tensor.device.device_type == kDLCUDA;
  if (!dtype || tensor.ndim > Dims::kMaxRank || (!on_cuda && tensor.device.device_type != kDLCPU) ||
      flips_signs(object, *dtype)) {
    return std::nullopt;
  }
  const auto dims = [&](const std::int64_t* values) {
    return Dims(std::span(values, static_cast<std::size_t>(tensor.ndim)));
  };
  return TensorView{static_cast<char*>(tensor.data) + tensor.byte_offset, *dtype,
                    dims(tensor.shape), dims(tensor.strides),
                    on_cuda ? Device::cuda(tensor.device.device_id) : Device::cpu()};
}

/// Sets an argument; false where it needs what torch's dispatcher does, or is to be refused.
bool set(Call& call, const Argument& argument, PyObject* object) {
  if (!argument.flag.empty()) return true;  // the output itself is given, or None
  const Parameter& row = *argument.row;
  if (object == &_Py_NoneStruct) return row.optional || row.number;
  if (row.number) {
    if (!has_type(object, &PyFloat_Type)) return false;
    call.set(row, PyFloat_AsDouble(object));
    return true;
  }
  const std::optional<TensorView> view = view_of(object);
  return view && call.set_readable(row, *view);
}

/// Sets the arguments of torch's schema, and behind them its results, None where not wanted.
bool set(Call& call, const Binding& binding, PyObject* const* objects) {
  for (const Argument& argument : binding.arguments) {
    if (!set(call, argument, *objects++)) return false;
  }
  for (const Result& result : binding.results) {
    PyObject* const object = *objects++;
    if (object == &_Py_NoneStruct) continue;
    const std::optional<TensorView> view = view_of(object);
    if (!view || !call.set_output(result, *view)) return false;
  }
  return true;
}

PyObject* error_of(const std::exception& error, PyObject* type) {
  PyErr_SetString(type, error.what());
  return nullptr;
}

PyObject* call_directly(PyObject* self, PyObject* const* objects, std::ptrdiff_t count) {
  const auto& binding = *static_cast<const Binding*>(PyCapsule_GetPointer(self, kCapsule));
  PyThreadState* released = nullptr;
  try {
    if (count != std::ssize(binding.arguments) + std::ssize(binding.results)) {
      throw std::runtime_error("[tandem] a direct call takes the arguments and results of " +
                               binding.schema());
    }
    Call call(*binding.signature);
    if (!set(call, binding, objects)) {
      PyErr_Clear();
      Py_IncRef(&_Py_NotImplementedStruct);
      return &_Py_NotImplementedStruct;
    }
    released = PyEval_SaveThread();
    call.run();
    PyEval_RestoreThread(released);
    Py_IncRef(&_Py_NoneStruct);
    return &_Py_NoneStruct;
  } catch (const std::exception& error) {
    if (released != nullptr) PyEval_RestoreThread(released);
    if (dynamic_cast<const InvalidArgument*>(&error)) return error_of(error, PyExc_ValueError);
    if (dynamic_cast<const Unsupported*>(&error)) return error_of(error, PyExc_NotImplementedError);
    return error_of(error, PyExc_RuntimeError);
  }
}

}  // namespace
}  // namespace tandem::extension

/// Returns a function that makes the call `name` directly. It takes the arguments of torch's schema
/// and then its results, contiguous tensors or None; returns NotImplemented, having done nothing,
/// where torch's dispatcher is needed. `api` is torch.Tensor's __dlpack_c_exchange_api__. Null with
/// Python's error set where there is no such call.
extern "C" __attribute__((visibility("default"))) PyObject* tandem_direct(
    const char* name, PyObject* api, PyObject* tensor_type, PyObject* parameter_type) {
  using namespace tandem::extension;
  static PyMethodDef method{"call", &call_directly, METH_FASTCALL, nullptr};
  const auto* table =
      static_cast<const DLPackExchangeAPI*>(PyCapsule_GetPointer(api, "dlpack_exchange_api"));
  if (table == nullptr) return nullptr;
  if (table->header.version.major != 1 || table->dltensor_from_py_object_no_sync == nullptr) {
    PyErr_SetString(PyExc_RuntimeError, "[tandem] torch's DLPack exchange API is another one");
    return nullptr;
  }
  python = {table, tensor_type, parameter_type, PyUnicode_InternFromString("is_neg")};
  for (const Binding& binding : bindings()) {
    if (std::string_view(binding.signature->name()) != name) continue;
    PyObject* const self = PyCapsule_New(const_cast<Binding*>(&binding), kCapsule, nullptr);
    PyObject* const function = PyCFunction_NewEx(&method, self, nullptr);
    Py_DecRef(self);
    return function;
  }
  PyErr_SetString(PyExc_ValueError, "[tandem] no such call");
  return nullptr;
}
