// gla_forward_kernel on fp16 tensors.
#include "cuda/gla/forward.cuh"

namespace tandem::cuda {

#define TANDEM_FORWARD(key_dim, value_dim)                                 \
  template void launch_forward<ForwardConfig<__half, key_dim, value_dim>>( \
      const char*, const GlaForwardParams&, unsigned, void*);
TANDEM_FORWARD(64, 64)
TANDEM_FORWARD(64, 128)
TANDEM_FORWARD(128, 64)
TANDEM_FORWARD(128, 128)
TANDEM_FORWARD(256, 64)
#undef TANDEM_FORWARD

}  // namespace tandem::cuda
