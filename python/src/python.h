// What is used of Python's stable ABI (PEP 384), declared here so that the extension is built
// without Python's headers and loads in every Python 3.10 or later. Weak: the process that loads it
// has them.
#pragma once

#include <cstddef>

/// Of functions that Python calls through ctypes.
#define TANDEM_FOR_PYTHON extern "C" __attribute__((visibility("default")))

extern "C" {

struct PyObject {
  std::ptrdiff_t opaque;
};
struct PyThreadState;
using PyFastFunction = PyObject* (*)(PyObject* self, PyObject* const* args, std::ptrdiff_t count);

struct PyMethodDef {
  const char* name;
  PyFastFunction function;
  int flags;
  const char* doc;
};
constexpr int METH_FASTCALL = 0x80;

#define TANDEM_OF_PYTHON __attribute__((weak, visibility("default")))

extern TANDEM_OF_PYTHON PyObject _Py_NoneStruct;
extern TANDEM_OF_PYTHON PyObject _Py_NotImplementedStruct;
extern TANDEM_OF_PYTHON PyObject _Py_FalseStruct;
extern TANDEM_OF_PYTHON PyObject _Py_TrueStruct;
extern TANDEM_OF_PYTHON PyObject PyFloat_Type;
extern TANDEM_OF_PYTHON PyObject* PyExc_NotImplementedError;
extern TANDEM_OF_PYTHON PyObject* PyExc_RuntimeError;
extern TANDEM_OF_PYTHON PyObject* PyExc_ValueError;

TANDEM_OF_PYTHON void Py_IncRef(PyObject*);
TANDEM_OF_PYTHON void Py_DecRef(PyObject*);
TANDEM_OF_PYTHON PyObject* PyObject_Type(PyObject*);
TANDEM_OF_PYTHON int PyObject_IsTrue(PyObject*);
TANDEM_OF_PYTHON PyObject* PyObject_GetAttr(PyObject*, PyObject* name);
TANDEM_OF_PYTHON PyObject* PyObject_CallNoArgs(PyObject*);
TANDEM_OF_PYTHON PyObject* PyObject_CallFunctionObjArgs(PyObject*, ...);
TANDEM_OF_PYTHON PyObject* PyObject_CallMethodObjArgs(PyObject*, PyObject* name, ...);
TANDEM_OF_PYTHON std::ptrdiff_t PyTuple_Size(PyObject*);
TANDEM_OF_PYTHON PyObject* PyTuple_GetItem(PyObject*, std::ptrdiff_t);
TANDEM_OF_PYTHON PyObject* PyTuple_New(std::ptrdiff_t);
TANDEM_OF_PYTHON int PyTuple_SetItem(PyObject*, std::ptrdiff_t, PyObject* item);  // takes it
TANDEM_OF_PYTHON PyObject* PyUnicode_InternFromString(const char*);
TANDEM_OF_PYTHON double PyFloat_AsDouble(PyObject*);
TANDEM_OF_PYTHON PyObject* PyCFunction_NewEx(PyMethodDef*, PyObject* self, PyObject* module);
TANDEM_OF_PYTHON PyObject* PyCapsule_New(void*, const char* name, void (*destroy)(PyObject*));
TANDEM_OF_PYTHON void* PyCapsule_GetPointer(PyObject*, const char* name);
TANDEM_OF_PYTHON void PyErr_SetString(PyObject* type, const char* text);
TANDEM_OF_PYTHON PyObject* PyErr_Occurred();
TANDEM_OF_PYTHON void PyErr_Clear();
TANDEM_OF_PYTHON PyThreadState* PyEval_SaveThread();
TANDEM_OF_PYTHON void PyEval_RestoreThread(PyThreadState*);
}
