// A call from Python past torch's dispatcher, whose arguments and results alone take as long as the
// rest of a small call. Tensors are read through torch's DLPack exchange API; those that are made
// are torch's own.
#include <deque>
#include <string_view>

#include "call.h"
#include "dlpack.h"
#include "python.h"

/// Of torch's stable ABI from 2.14 on.
extern "C" __attribute__((weak)) AOTITorchError torch_tensor_to_pyobject(AtenTensorHandle tensor,
                                                                         void* type, void** object);

namespace tandem::extension {
namespace {

constexpr const char* kCapsule = "tandem.direct";

/// A call, and which of its arguments its backward takes only up to a last extent; null: none.
struct Direct {
  const Binding& binding;
  const Argument* limited;
  std::int64_t widest;
};

/// What the calls of a process share, of torch and of Python.
struct Imported {
  const DLPackExchangeAPI* api = nullptr;
  PyObject* tensor_type = nullptr;
  PyObject* parameter_type = nullptr;
  PyObject* out_of_memory = nullptr;      // torch's class of errors
  PyObject* increment_version = nullptr;  // takes a tuple of tensors
  std::vector<PyObject*> watchers;        // functions that say whether something looks on
  PyObject* is_neg = nullptr;             // the method's name
  PyObject* requires_grad = nullptr;      // the attribute's
  PyObject* (*object_of)(AtenTensorHandle) = nullptr;
};
Imported python;

PyObject* new_reference(PyObject& object) {
  Py_IncRef(&object);
  return &object;
}

/// The class, which the object keeps alive.
PyObject* type_of(PyObject* object) {
  PyObject* const type = PyObject_Type(object);
  Py_DecRef(type);
  return type;
}

bool is_plain(PyObject* object) {
  PyObject* const type = type_of(object);
  return type == python.tensor_type || type == python.parameter_type;
}

bool is_true(PyObject* answer) {
  if (answer == nullptr) PyErr_Clear();
  const bool is = answer == nullptr || PyObject_IsTrue(answer) != 0;
  if (answer != nullptr) Py_DecRef(answer);
  return is;
}

/// Whether a mode, a profiler, a tracer or a transform is to see the call.
bool is_watched() {
  return std::ranges::any_of(
      python.watchers, [](PyObject* watcher) { return is_true(PyObject_CallNoArgs(watcher)); });
}

/// Whether a plain tensor among the arguments is to have a gradient.
bool wants_gradient(const Binding& binding, PyObject* const* objects) {
  if (!aoti_torch_grad_mode_is_enabled()) return false;
  return std::ranges::any_of(binding.arguments, [&](const Argument& argument) {
    PyObject* const object = *objects++;
    return argument.flag.empty() && argument.row->is_tensor() && is_plain(object) &&
           is_true(PyObject_GetAttr(object, python.requires_grad));
  });
}

/// Whether signs are flipped only when they are read: of a part of a complex conjugate, which is
/// every other number.
bool flips_signs(PyObject* tensor, const DLTensor& view) {
  for (int axis = 0; axis < view.ndim; ++axis) {
    if (view.shape[axis] > 1 && view.strides[axis] % 2 != 0) return false;
  }
  return is_true(PyObject_CallMethodObjArgs(tensor, python.is_neg, nullptr));
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
  if (!is_plain(object)) return std::nullopt;
  DLTensor tensor;
  if (python.api->dltensor_from_py_object_no_sync(object, &tensor) != 0) {
    PyErr_Clear();
    return std::nullopt;
  }
  const std::optional<DType> dtype = dtype_of(tensor.dtype);
  const bool on_cuda = tensor.device.device_type == kDLCUDA;
  if (!dtype || tensor.ndim > Dims::kMaxRank || (!on_cuda && tensor.device.device_type != kDLCPU) ||
      flips_signs(object, tensor)) {
    return std::nullopt;
  }
  const auto dims = [&](const std::int64_t* values) {
    return Dims(std::span(values, static_cast<std::size_t>(tensor.ndim)));
  };
  return TensorView{static_cast<char*>(tensor.data) + tensor.byte_offset, *dtype,
                    dims(tensor.shape), dims(tensor.strides),
                    on_cuda ? Device::cuda(tensor.device.device_id) : Device::cpu()};
}

/// Whether the op converts a tensor of this dtype.
bool is_to_widen(const Parameter& row, DType dtype) {
  return row.element == Element::kFp32 && (dtype == DType::kBFloat16 || dtype == DType::kFloat16);
}

/// Whether torch can differentiate with the arguments as they are: no number is a tensor, the op
/// converts none and updates none in place, and the backward takes them all.
bool is_ready(const Direct& direct, PyObject* const* objects) {
  return std::ranges::all_of(direct.binding.arguments, [&](const Argument& argument) {
    PyObject* const object = *objects++;
    const Parameter& row = *argument.row;
    if (row.role == Role::kInPlace) return false;
    if (!argument.flag.empty() || object == &_Py_NoneStruct) return true;
    if (row.number) return type_of(object) == &PyFloat_Type;
    const bool is_limited = &argument == direct.limited;
    if (row.element != Element::kFp32 && !is_limited) return true;
    const std::optional<TensorView> view = view_of(object);
    if (!view || is_to_widen(row, view->dtype)) return false;
    return !is_limited || view->shape.rank() == 0 ||
           view->shape[view->shape.rank() - 1] <= direct.widest;
  });
}

/// Sets an argument; false where it needs what the op or torch's dispatcher does, or is to be
/// refused.
bool set(Call& call, const Binding& binding, const Argument& argument, PyObject* object) {
  if (!argument.flag.empty()) return object == &_Py_TrueStruct || object == &_Py_FalseStruct;
  const Parameter& row = *argument.row;
  if (object == &_Py_NoneStruct) return row.optional || row.number;
  if (row.number) {
    if (type_of(object) != &PyFloat_Type) return false;
    call.set(row, PyFloat_AsDouble(object));
    return true;
  }
  std::optional<TensorView> view = view_of(object);
  if (!view || is_to_widen(row, view->dtype)) return false;
  if (binding.is_step && row.role == Role::kInput && !call.take_time_axis(row, *view)) return false;
  return call.set_readable(row, *view);
}

bool set(Call& call, const Binding& binding, PyObject* const* objects) {
  return std::ranges::all_of(binding.arguments, [&](const Argument& argument) {
    return set(call, binding, argument, *objects++);
  });
}

/// Lets autograd know of the tensors that were written to. False with Python's error set where it
/// will not.
bool increment_versions(const Binding& binding, PyObject* const* objects) {
  return std::ranges::all_of(binding.arguments, [&](const Argument& argument) {
    PyObject* const object = *objects++;
    if (argument.row->role != Role::kInPlace) return true;
    PyObject* const tensors = PyTuple_New(1);
    PyTuple_SetItem(tensors, 0, new_reference(*object));
    PyObject* const done = PyObject_CallFunctionObjArgs(python.increment_version, tensors, nullptr);
    Py_DecRef(tensors);
    if (done != nullptr) Py_DecRef(done);
    return done != nullptr;
  });
}

/// Makes an object of an output, None of one that is not there.
PyObject* object_of(const OptionalTensor& output) {
  if (!output) return new_reference(_Py_NoneStruct);
  PyObject* const object = python.object_of(output->get());
  if (object == nullptr) throw std::runtime_error("[tandem] torch failed to return a tensor");
  return object;
}

/// One result alone, else a tuple of them.
PyObject* results_of(const std::vector<OptionalTensor>& outputs) {
  if (outputs.size() == 1) return object_of(outputs[0]);
  PyObject* const results = PyTuple_New(std::ssize(outputs));
  for (std::size_t i = 0; i < outputs.size(); ++i) {
    PyTuple_SetItem(results, static_cast<std::ptrdiff_t>(i), object_of(outputs[i]));
  }
  return results;
}

PyObject* error_of(const std::exception& error, PyObject* type) {
  PyErr_SetString(type, error.what());
  return nullptr;
}

PyObject* call_directly(PyObject* self, PyObject* const* objects, std::ptrdiff_t count) {
  const auto& direct = *static_cast<const Direct*>(PyCapsule_GetPointer(self, kCapsule));
  const Binding& binding = direct.binding;
  PyThreadState* released = nullptr;
  try {
    if (count != std::ssize(binding.arguments)) {
      throw std::runtime_error("[tandem] a direct call takes the arguments of " + binding.schema());
    }
    if (wants_gradient(binding, objects)) {
      return new_reference(is_ready(direct, objects) ? _Py_NoneStruct : _Py_NotImplementedStruct);
    }
    if (python.object_of == nullptr || is_watched()) return new_reference(_Py_NotImplementedStruct);
    Call call(*binding.signature);
    if (!set(call, binding, objects)) return new_reference(_Py_NotImplementedStruct);
    released = PyEval_SaveThread();
    const std::vector<OptionalTensor> outputs =
        call.outputs(binding, [&](int place) { return objects[place] == &_Py_TrueStruct; });
    call.run();
    PyEval_RestoreThread(released);
    released = nullptr;
    return increment_versions(binding, objects) ? results_of(outputs) : nullptr;
  } catch (const std::exception& error) {
    if (released != nullptr) PyEval_RestoreThread(released);
    if (dynamic_cast<const InvalidArgument*>(&error)) return error_of(error, PyExc_ValueError);
    if (dynamic_cast<const Unsupported*>(&error)) return error_of(error, PyExc_NotImplementedError);
    if (dynamic_cast<const OutOfMemory*>(&error)) return error_of(error, python.out_of_memory);
    return error_of(error, PyExc_RuntimeError);
  }
}

/// Makes a Python object of a tensor, torch's own way; null where this torch has none.
PyObject* object_by_abi(AtenTensorHandle tensor) {
  void* object = nullptr;
  if (torch_tensor_to_pyobject(tensor, nullptr, &object) != AOTI_TORCH_SUCCESS) return nullptr;
  return static_cast<PyObject*>(object);
}

/// Finds what makes a Python object of a tensor: of torch's ABI or, where that has none yet, the
/// function behind it, whose C++ name is that of all releases from 2.10 on. Null without either.
PyObject* (*find_object_of())(AtenTensorHandle) {
  if (torch_tensor_to_pyobject != nullptr) return &object_by_abi;
  void* const library = dlopen("libtorch_python.so", RTLD_NOW | RTLD_NOLOAD);
  // THPVariable_Wrap(const at::TensorBase&): a handle is a pointer to a tensor.
  void* const wrap = library ? dlsym(library, "_Z16THPVariable_WrapRKN2at10TensorBaseE") : nullptr;
  return reinterpret_cast<PyObject* (*)(AtenTensorHandle)>(wrap);
}

}  // namespace
}  // namespace tandem::extension

/// Says what direct calls take of torch, before the first tandem_direct(): torch.Tensor's
/// __dlpack_c_exchange_api__, classes, what tells autograd of tensors that were written to, and
/// functions that say whether something looks on. Null with Python's error set where it will not
/// do.
TANDEM_FOR_PYTHON PyObject* tandem_import(PyObject* api, PyObject* tensor_type,
                                          PyObject* parameter_type, PyObject* out_of_memory,
                                          PyObject* increment_version, PyObject* watchers) {
  using namespace tandem::extension;
  const auto* table =
      static_cast<const DLPackExchangeAPI*>(PyCapsule_GetPointer(api, "dlpack_exchange_api"));
  if (table == nullptr) return nullptr;
  if (table->header.version.major != 1 || table->dltensor_from_py_object_no_sync == nullptr) {
    PyErr_SetString(PyExc_RuntimeError, "[tandem] torch's DLPack exchange API is another one");
    return nullptr;
  }
  python.api = table;
  python.tensor_type = new_reference(*tensor_type);
  python.parameter_type = new_reference(*parameter_type);
  python.out_of_memory = new_reference(*out_of_memory);
  python.increment_version = new_reference(*increment_version);
  for (std::ptrdiff_t i = 0; i < PyTuple_Size(watchers); ++i) {
    python.watchers.push_back(new_reference(*PyTuple_GetItem(watchers, i)));
  }
  python.is_neg = PyUnicode_InternFromString("is_neg");
  python.requires_grad = PyUnicode_InternFromString("requires_grad");
  python.object_of = find_object_of();
  return new_reference(_Py_NoneStruct);
}

/// Returns a function that makes the call `name` directly. It takes the arguments of torch's schema
/// and returns its results; having done nothing, None where torch is to differentiate, and
/// NotImplemented where its dispatcher is needed, or the argument at place `limited` (-1: none) is
/// wider than its backward takes. Null with Python's error set where there is no such call.
TANDEM_FOR_PYTHON PyObject* tandem_direct(const char* name, int limited, std::int64_t widest) {
  using namespace tandem::extension;
  static PyMethodDef method{"call", &call_directly, METH_FASTCALL, nullptr};
  static std::deque<Direct> made;  // as long as the process, as the functions may be
  for (const Binding& binding : bindings()) {
    if (std::string_view(binding.signature->name()) != name) continue;
    const Argument* const argument = limited < 0 ? nullptr : &binding.arguments.at(limited);
    made.push_back({binding, argument, widest});
    PyObject* const self = PyCapsule_New(&made.back(), kCapsule, nullptr);
    PyObject* const function = PyCFunction_NewEx(&method, self, nullptr);
    Py_DecRef(self);
    return function;
  }
  PyErr_SetString(PyExc_ValueError, "[tandem] no such call");
  return nullptr;
}
