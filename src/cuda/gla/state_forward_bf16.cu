// gla_state_forward_kernel on bf16 tensors.
#include "cuda/gla/state_forward_instances.cuh"

TANDEM_STATE_FORWARD_INSTANCES(__nv_bfloat16, false)
TANDEM_STATE_FORWARD_INSTANCES(__nv_bfloat16, true)
