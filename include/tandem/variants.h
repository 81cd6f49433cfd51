// What the library can run: each op's variants, for tools and for people who ask why one is not
// used.
#pragma once

#include <string>
#include <vector>

#include "tandem/device.h"

namespace tandem {

/// One implementation of an op, e.g. "gla_forward.sm90.bf16.c64_k128_v128".
struct VariantInfo {
  std::string op;  ///< "gla"
  std::string name;
  std::string unavailable;  ///< why no call can use it here; "" when some can
};

/// Every variant of every op of this build, judged for a device with these properties. A call takes
/// the one that is predicted to be fastest, or, where speed does not decide, the first that can.
std::vector<VariantInfo> variants(const DeviceProperties& device);

/// Name of the CUDA variant that this thread's last call or workspace query chose; "" before any.
std::string last_variant();

}  // namespace tandem
