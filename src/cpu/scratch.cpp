#include "ops/scratch.h"

#include <cstdint>
#include <memory>
#include <new>
#include <string>

#include "core/check.h"

namespace tandem::cpu {

void with_scratch(const char* block, const Context& context, std::size_t bytes,
                  const UseScratch& use) {
  Workspace workspace = context.workspace;
  if (workspace.data == nullptr && context.allocate && bytes > 0) {
    workspace = {context.allocate(bytes), bytes};
  }
  if (workspace.data != nullptr) {
    if (workspace.bytes < bytes) {
      refuse(block, "workspace must have at least " + std::to_string(bytes) + " bytes, got " +
                        std::to_string(workspace.bytes));
    }
    return use(static_cast<char*>(workspace.data));
  }
  struct Free {
    void operator()(char* data) const { ::operator delete[](data, std::align_val_t{256}); }
  };
  const std::unique_ptr<char, Free> owned(
      static_cast<char*>(::operator new[](bytes, std::align_val_t{256})));
  use(owned.get());
}

}  // namespace tandem::cpu
