// The walks of a backward on bf16 tensors.
#include "cuda/gla/forward_instances.cuh"

TANDEM_FORWARD_INSTANCES(__nv_bfloat16, false, Walk::kQuery)
TANDEM_FORWARD_INSTANCES(__nv_bfloat16, false, Walk::kKey)
TANDEM_FORWARD_INSTANCES(__nv_bfloat16, false, Walk::kValue)
