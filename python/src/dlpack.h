// What is used of DLPack's ABI, version 1 (https://github.com/dmlc/dlpack): how a framework's
// tensors are read without its headers.
#pragma once

#include <cstdint>

enum : std::int32_t { kDLCPU = 1, kDLCUDA = 2 };
enum : std::uint8_t { kDLInt = 0, kDLFloat = 2, kDLBfloat = 4 };

struct DLDevice {
  std::int32_t device_type;
  std::int32_t device_id;
};

struct DLDataType {
  std::uint8_t code;
  std::uint8_t bits;
  std::uint16_t lanes;
};

struct DLTensor {
  void* data;
  DLDevice device;
  std::int32_t ndim;
  DLDataType dtype;
  std::int64_t* shape;
  std::int64_t* strides;  // in elements
  std::uint64_t byte_offset;
};

/// What a tensor type's __dlpack_c_exchange_api__ holds.
struct DLPackExchangeAPI {
  struct {
    struct {
      std::uint32_t major, minor;
    } version;
    void* prev_api;
  } header;
  void* managed_tensor_allocator;
  void* managed_tensor_from_py_object_no_sync;
  void* managed_tensor_to_py_object_no_sync;
  /// Describes a tensor that the caller keeps; -1 and Python's error where it cannot.
  int (*dltensor_from_py_object_no_sync)(void* py_object, DLTensor* out);
  void* current_work_stream;
};
