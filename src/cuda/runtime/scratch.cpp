#include "ops/scratch.h"

#include "cuda/runtime/call_scope.h"
#include "cuda/runtime/workspace.h"

namespace tandem::cuda {

void with_scratch(const char* block, Device device, const Context& context, std::size_t bytes,
                  const UseScratch& use) {
  const CallScope scope(block, device.index);
  const ScratchMemory memory(block, context, bytes);
  use(memory.at<char>(0));
}

}  // namespace tandem::cuda
