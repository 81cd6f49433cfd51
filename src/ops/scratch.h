// Scratch memory of a block, whose ops then take parts of it.
#pragma once

#include <cstddef>
#include <functional>

#include "tandem/context.h"
#include "tandem/device.h"

namespace tandem {

/// What is done with the memory while it is held.
using UseScratch = std::function<void(char* data)>;

namespace cpu {
void with_scratch(const char* block, const Context& context, std::size_t bytes,
                  const UseScratch& use);
}

namespace cuda {
void with_scratch(const char* block, Device device, const Context& context, std::size_t bytes,
                  const UseScratch& use);
}

}  // namespace tandem
