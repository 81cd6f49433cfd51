// wgmma (cuda/parts/wgmma.cuh) with fewer than 64 columns.
#pragma once

#include "cuda/parts/wgmma.cuh"

namespace tandem::cuda::detail {

#define TANDEM_MMA_ATOMS(element, n, name)                               \
  template <Major kA, Major kB>                                          \
  struct MmaAtoms<element, n, kA, kB> {                                  \
    using SS = cute::SM90::GMMA::MMA_64x##n##x16_F32##name##_SS<kA, kB>; \
  };
TANDEM_MMA_ATOMS(__nv_bfloat16, 8, BF16BF16)
TANDEM_MMA_ATOMS(__nv_bfloat16, 16, BF16BF16)
TANDEM_MMA_ATOMS(__nv_bfloat16, 32, BF16BF16)
TANDEM_MMA_ATOMS(__half, 8, F16F16)
TANDEM_MMA_ATOMS(__half, 16, F16F16)
TANDEM_MMA_ATOMS(__half, 32, F16F16)
#undef TANDEM_MMA_ATOMS

}  // namespace tandem::cuda::detail
