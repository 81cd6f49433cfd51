// tandem info: what this build and this machine can run.
#include <fmt/format.h>

#include "cli/build_info.h"
#include "cli/calls/backend.h"
#include "cli/commands.h"
#include "tandem/variants.h"

namespace tandem::tools {
namespace {

void print_variants(const DeviceProperties& device) {
  for (const VariantInfo& variant : variants(device)) {
    fmt::print("  {:<52} {}\n", variant.name,
               variant.unavailable.empty() ? "available" : "unavailable: " + variant.unavailable);
  }
}

void info() {
  fmt::print("tandem {}, commit {}\nbuild: {}\n", kVersion, kCommit, build_options());
  std::vector<std::string> names;
  for (const Operation& operation : operations()) names.push_back(title(operation));
  fmt::print("ops: {}\n\ncpu\n", fmt::join(names, ", "));
  print_variants(DeviceProperties::cpu());
  const int count = cuda_device_count();
  for (int i = 0; i < count; ++i) {
    const DeviceProperties& device = device_properties(Device::cuda(i));
    fmt::print("\ncuda:{}: {}, compute capability {}.{}, {} multiprocessors, {} MiB L2\n", i,
               device.name, device.compute_major, device.compute_minor, device.multiprocessors,
               device.l2_bytes >> 20);
    print_variants(device);
  }
  if (count > 0) return;
  fmt::print("\ncuda: unavailable: {}\n", cuda_unavailable_reason());
  if (!built_with_cuda()) return;
  fmt::print("variants for {}:\n", DeviceProperties::h200().name);
  print_variants(DeviceProperties::h200());
}

}  // namespace

void add_info(CLI::App& app) {
  app.add_subcommand("info", "Version, build, devices, ops and their variants")->callback(info);
}

}  // namespace tandem::tools
