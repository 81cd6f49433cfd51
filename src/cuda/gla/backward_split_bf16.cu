// The walks of a backward on split sequences of bf16 tensors.
#include "cuda/gla/forward_instances.cuh"

TANDEM_FORWARD_INSTANCES(__nv_bfloat16, true, Walk::kForward)
TANDEM_FORWARD_INSTANCES(__nv_bfloat16, true, Walk::kReverse)
