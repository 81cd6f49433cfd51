// gla's unfused baseline in a build without CUDA.
#include "cli/ops/gla.h"
#include "tandem/error.h"

namespace tandem::tools {

void unfused_gla(const TensorSet&, const std::vector<void*>&, Device, const Context&) {
  throw Unsupported("cuda: " + cuda_unavailable_reason());
}

std::size_t unfused_gla_workspace_bytes(const TensorSet&, const std::vector<void*>&, Device) {
  throw Unsupported("cuda: " + cuda_unavailable_reason());
}

}  // namespace tandem::tools
