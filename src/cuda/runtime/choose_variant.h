// The choice among an op's variants: what every table shares. Host only.
#pragma once

#include <string>
#include <vector>

#include "core/call_options.h"
#include "tandem/device.h"
#include "tandem/error.h"

namespace tandem::cuda {

/// Says why no call can use an sm_90 variant on such a device, "" when some can.
inline std::string sm90_problem(const DeviceProperties& device) {
  if (device.compute_major == 9 && device.compute_minor == 0) return "";
  return "needs compute capability 9.0, " + device.name + " has " +
         std::to_string(device.compute_major) + "." + std::to_string(device.compute_minor);
}

/// Returns the first variant that accepts the problem and that the options allow, or throws
/// Unsupported with every variant's reason. `reason_against(variant)` is "" when it accepts.
template <class Variant, class ReasonAgainst>
const Variant& choose_variant(const char* call, const std::vector<Variant>& table,
                              const DeviceProperties& device, const CallOptions& options,
                              ReasonAgainst reason_against) {
  std::string reasons;
  for (const Variant& variant : table) {
    std::string reason = sm90_problem(device);
    if (reason.empty() && !options.variant.empty() && options.variant != variant.name) {
      reason = "TANDEM_VARIANT asks for " + std::string(options.variant);
    }
    if (reason.empty()) reason = reason_against(variant);
    if (reason.empty()) {
      if (options.chosen != nullptr) *options.chosen = variant.name;
      return variant;
    }
    reasons.append("\n  ").append(variant.name).append(": ").append(reason);
  }
  throw Unsupported("[" + std::string(call) + "] no variant on " + device.name +
                    " takes these arguments:" + reasons);
}

}  // namespace tandem::cuda
