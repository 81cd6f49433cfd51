// Copies keys and values of new tokens into a cache, for the blocks.
#pragma once

#include <cstdint>

#include "tandem/context.h"
#include "tandem/device.h"

namespace tandem {

/// All contiguous. Rows are those of a token: its key or value heads.
struct AppendProblem {
  Device device;
  std::int64_t B = 0, T = 0, capacity = 0;
  std::int64_t row_bytes = 0;
  const void* k = nullptr;  // [B,T,row_bytes]
  const void* v = nullptr;
  void* cache_k = nullptr;  // [B,capacity,row_bytes]
  void* cache_v = nullptr;
  std::int32_t* lengths = nullptr;  // [B]
  /// Whether one token goes behind those that the cache has, if there is room for it: T = 1. Else
  /// the tokens go to the front and replace what is there.
  bool steps = false;
};

namespace cpu {
void append_to_cache(const AppendProblem& problem);
}

namespace cuda {
void append_to_cache(const AppendProblem& problem, const Context& context);
}

}  // namespace tandem
