// Which variant the library picks for a call: each forced in turn, in its order.
#pragma once

#include <cstdlib>
#include <string>

#include "tandem/device.h"
#include "tandem/error.h"
#include "tandem/variants.h"

namespace tandem::bench {

/// `function`, "gla_forward", begins the names of its variants; `run` makes the call. Throws
/// Unsupported with the library's text when no variant takes it.
template <class Run>
std::string first_variant(const std::string& function, int device, const Run& run) {
  constexpr const char* kSwitch = "TANDEM_VARIANT";
  if (const char* forced = std::getenv(kSwitch)) {
    run();
    return forced;
  }
  std::string name;
  for (const VariantInfo& variant : variants(device_properties(Device::cuda(device)))) {
    const bool of_function = variant.name.rfind(function + ".", 0) == 0;
    if (!of_function || !variant.unavailable.empty()) continue;
    setenv(kSwitch, variant.name.c_str(), 1);
    try {
      run();
      name = variant.name;
    } catch (const Unsupported&) {
    } catch (...) {
      unsetenv(kSwitch);
      throw;
    }
    unsetenv(kSwitch);
    if (!name.empty()) return name;
  }
  run();  // throws, listing every reason
  return "";
}

}  // namespace tandem::bench
