// gla_state_forward_kernel on fp16 tensors.
#include "cuda/gla/state_forward_instances.cuh"

TANDEM_STATE_FORWARD_INSTANCES(__half, false)
TANDEM_STATE_FORWARD_INSTANCES(__half, true)
