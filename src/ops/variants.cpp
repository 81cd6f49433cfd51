#include "tandem/variants.h"

#include "ops/gla.h"

namespace tandem {

std::vector<VariantInfo> variants(const DeviceProperties& device) {
  return device.type == DeviceType::kCpu ? cpu::gla_variants() : cuda::gla_variants(device);
}

}  // namespace tandem
