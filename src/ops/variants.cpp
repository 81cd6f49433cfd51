#include "tandem/variants.h"

#include "ops/gated_scan.h"
#include "ops/gla.h"
#include "ops/linear_scan.h"

namespace tandem {
namespace {

void append(std::vector<VariantInfo>& all, const std::vector<VariantInfo>& more) {
  all.insert(all.end(), more.begin(), more.end());
}

}  // namespace

std::vector<VariantInfo> variants(const DeviceProperties& device) {
  const bool cpu = device.type == DeviceType::kCpu;
  std::vector<VariantInfo> all;
  append(all, cpu ? cpu::gla_variants() : cuda::gla_variants(device));
  append(all, cpu ? cpu::gla_step_variants() : cuda::gla_step_variants(device));
  append(all, cpu ? cpu::gated_scan_variants() : cuda::gated_scan_variants(device));
  append(all, cpu ? cpu::linear_scan_variants() : cuda::linear_scan_variants(device));
  return all;
}

}  // namespace tandem
