// gla's CUDA entry points in a build without CUDA.
#include "ops/gla.h"
#include "tandem/error.h"

namespace tandem::cuda {
namespace {

[[noreturn]] void unsupported() {
  throw Unsupported("[gla_forward] tensors on a CUDA device: " + cuda_unavailable_reason());
}

}  // namespace

void gla_forward(const GlaForwardProblem&, const Context&) { unsupported(); }

std::size_t gla_forward_workspace_bytes(const GlaForwardProblem&, const DeviceProperties&) {
  unsupported();
}

std::vector<VariantInfo> gla_variants(const DeviceProperties&) { return {}; }

}  // namespace tandem::cuda
