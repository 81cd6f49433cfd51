// Widths of wgmma that attention's blocks of keys have, beside those of parts/wgmma.cuh.
#pragma once

#include <cute/arch/mma_sm90_gmma.hpp>
#include <cute/arch/mma_sm90_gmma_ext.hpp>

#include "cuda/parts/wgmma.cuh"

namespace tandem::cuda::detail {

#define TANDEM_MMA_ATOMS(element, n, name)                                     \
  template <Major kA, Major kB>                                                \
  struct MmaAtoms<element, n, kA, kB> {                                        \
    using SS = cute::SM90::GMMA::MMA_64x##n##x16_F32##name##_SS<kA, kB>;       \
    using RS = cute::SM90::GMMA::MMA_64x##n##x16_F32##name##_RS<Major::K, kB>; \
  };
TANDEM_MMA_ATOMS(__nv_bfloat16, 80, BF16BF16)
TANDEM_MMA_ATOMS(__nv_bfloat16, 112, BF16BF16)
TANDEM_MMA_ATOMS(__half, 80, F16F16)
TANDEM_MMA_ATOMS(__half, 112, F16F16)
#undef TANDEM_MMA_ATOMS

}  // namespace tandem::cuda::detail
