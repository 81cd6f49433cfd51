// cuBLASLt, looked up when it is first needed: a machine that only has the driver can still run,
// check and time kernels; only the matrix ceiling and the unfused baselines need this library.
#pragma once

#include <cublasLt.h>

#include <string>
#include <utility>

#include "tandem/error.h"

namespace tandem::bench {

/// The functions that are used, under their names without the prefix.
struct CublasLt {
#define TANDEM_CUBLASLT_FUNCTIONS(X) \
  X(GetStatusString)                 \
  X(Create)                          \
  X(Destroy)                         \
  X(Matmul)                          \
  X(MatmulAlgoGetHeuristic)          \
  X(MatmulDescCreate)                \
  X(MatmulDescDestroy)               \
  X(MatmulDescSetAttribute)          \
  X(MatrixLayoutCreate)              \
  X(MatrixLayoutSetAttribute)        \
  X(MatrixLayoutDestroy)             \
  X(MatmulPreferenceCreate)          \
  X(MatmulPreferenceDestroy)         \
  X(MatmulPreferenceSetAttribute)
#define TANDEM_DECLARE(name) decltype(&cublasLt##name) name = nullptr;
  TANDEM_CUBLASLT_FUNCTIONS(TANDEM_DECLARE)
#undef TANDEM_DECLARE

  void check(cublasStatus_t status, const char* what) const {
    if (status == CUBLAS_STATUS_SUCCESS) return;
    throw CudaError("[" + std::string(what) + "] " + GetStatusString(status));
  }
};

/// Returns the functions, loaded at the first call. Throws when the library or one of its functions
/// is missing.
const CublasLt& cublaslt();

/// Owns a cuBLASLt object.
template <typename Handle>
class CublasLtOwner {
 public:
  explicit CublasLtOwner(cublasStatus_t (*destroy)(Handle)) : destroy_(destroy) {}
  ~CublasLtOwner() {
    if (handle != nullptr) destroy_(handle);
  }
  CublasLtOwner(CublasLtOwner&& other) noexcept
      : handle(std::exchange(other.handle, nullptr)), destroy_(other.destroy_) {}
  CublasLtOwner& operator=(CublasLtOwner&&) = delete;

  Handle handle = nullptr;

 private:
  cublasStatus_t (*destroy_)(Handle);
};

}  // namespace tandem::bench
