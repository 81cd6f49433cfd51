// Random bf16 data made on the device: a memory or a matrix unit full of zeros draws less power and
// runs faster than one at work.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

namespace tandem::bench {

/// Fills `count` bf16 elements with independent values of mean 0 and variance 1, nearly normal.
void fill_random_bf16(void* data, std::size_t count, std::uint32_t seed, cudaStream_t stream);

}  // namespace tandem::bench
