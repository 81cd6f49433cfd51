#pragma once

#include <span>

#include "bench.h"

namespace tandem::bench {

/// Returns whether all bytes of each pair of places of the current device agree. Waits for the
/// device, once; sizes and addresses are multiples of 16.
bool equal(std::span<const tandem_bench_pair> pairs);

}  // namespace tandem::bench
