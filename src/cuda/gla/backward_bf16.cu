// The walks of a backward on bf16 tensors.
#include "cuda/gla/forward_instances.cuh"

TANDEM_FORWARD_INSTANCES(__nv_bfloat16, false, Walk::kForward)
TANDEM_FORWARD_INSTANCES(__nv_bfloat16, false, Walk::kReverse)
