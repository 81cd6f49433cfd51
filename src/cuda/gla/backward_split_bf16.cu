// The walks of a backward on split sequences of bf16 tensors.
#include "cuda/gla/forward_instances.cuh"

TANDEM_FORWARD_INSTANCES(__nv_bfloat16, true, Walk::kQuery)
TANDEM_FORWARD_INSTANCES(__nv_bfloat16, true, Walk::kKey)
TANDEM_FORWARD_INSTANCES(__nv_bfloat16, true, Walk::kValue)
