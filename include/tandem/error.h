// Errors thrown by every Tandem call. The text is "[op] argument ... expected ..., got ...".
#pragma once

#include <stdexcept>

namespace tandem {

/// Base of everything the library throws.
class Error : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// An argument breaks the call's contract (shape, dtype, device, stride, overlap, workspace).
class InvalidArgument : public Error {
 public:
  using Error::Error;
};

/// The arguments are valid, but nothing in this build or on this machine can run them.
class Unsupported : public Error {
 public:
  using Error::Error;
};

/// The CUDA runtime or driver reported a failure.
class CudaError : public Error {
 public:
  using Error::Error;
};

}  // namespace tandem
