#pragma once

#include <cstddef>

namespace tandem::bench {

/// Returns whether all bytes of two places of the current device agree. Waits for the device;
/// `bytes` is a multiple of 16, and so are both addresses.
bool equal(const void* a, const void* b, std::size_t bytes);

}  // namespace tandem::bench
