// What a block's forward keeps for its backward.
#pragma once

#include <cstddef>

namespace tandem {

/// Memory on the tensors' device, at least as large as the block's `*_saved_bytes` says and aligned
/// to 256 bytes. A forward fills it; its backward, which gets the same block and shapes, reads it.
struct SavedMemory {
  void* data = nullptr;
  std::size_t bytes = 0;
};

}  // namespace tandem
