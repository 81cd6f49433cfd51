// gla_state_forward_kernel on fp16 tensors.
#include "cuda/gla/state_forward.cuh"

namespace tandem::cuda {

#define TANDEM_STATE_FORWARD(key_dim, value_dim)                                      \
  template void launch_state_forward<StateForwardConfig<__half, key_dim, value_dim>>( \
      const char*, const GlaStateForwardParams&, void*);
TANDEM_STATE_FORWARD(64, 64)
TANDEM_STATE_FORWARD(64, 128)
TANDEM_STATE_FORWARD(128, 64)
TANDEM_STATE_FORWARD(128, 128)
#undef TANDEM_STATE_FORWARD

}  // namespace tandem::cuda
