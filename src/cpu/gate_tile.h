// What follows gemm_swiglu's products on the CPU, over tiles in fp32 or fp64.
#pragma once

#include <cstdint>

#include "tandem/ops/gemm_swiglu.h"

namespace tandem::cpu {

/// out = f(g) u, and in the products' place what the backward takes: f(g) for g, f'(g) u for u.
template <typename Real>
void gate(GateActivation activation, std::int64_t count, Real* g, Real* u, Real* out);

}  // namespace tandem::cpu
