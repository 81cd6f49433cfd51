// gla_forward_kernel on bf16 tensors.
#include "cuda/gla/forward_instances.cuh"

TANDEM_FORWARD_INSTANCES(__nv_bfloat16, false, Walk::kOutput)
