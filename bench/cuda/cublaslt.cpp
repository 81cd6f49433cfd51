#include "cublaslt.h"

#include <dlfcn.h>

#include <string>
#include <type_traits>

namespace tandem::bench {
namespace {

CublasLt load() {
  const std::string file = "libcublasLt.so." + std::to_string(CUBLAS_VER_MAJOR);
  // For the life of the process; in the folder of the toolkit that this was built with as a last
  // resort.
  void* library = dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    library = dlopen((TANDEM_CUDA_LIBRARIES "/" + file).c_str(), RTLD_NOW | RTLD_LOCAL);
  }
  if (library == nullptr) {
    throw CudaError("[cublaslt] " + file + " is not found; LD_LIBRARY_PATH can name its folder");
  }
  CublasLt functions;
  const auto find = [&](auto& function, const char* name) {
    function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(dlsym(library, name));
    if (function == nullptr) throw CudaError("[cublaslt] " + file + " lacks " + name);
  };
#define TANDEM_FIND(name) find(functions.name, "cublasLt" #name);
  TANDEM_CUBLASLT_FUNCTIONS(TANDEM_FIND)
#undef TANDEM_FIND
  return functions;
}

}  // namespace

const CublasLt& cublaslt() {
  static const CublasLt functions = load();
  return functions;
}

}  // namespace tandem::bench
