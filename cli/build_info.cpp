#include "cli/build_info.h"

#include "commit.h"
#include "tandem/device.h"

namespace tandem::tools {

const char* const kVersion = TANDEM_VERSION;
const char* const kCommit = TANDEM_COMMIT;

std::string build_options() {
  return std::string(TANDEM_BUILD_TYPE) + ", " + TANDEM_COMPILER + ", CUDA " +
         (built_with_cuda() ? "on" : "off");
}

}  // namespace tandem::tools
