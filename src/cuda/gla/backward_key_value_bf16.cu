// The walk of a backward for dk and dv on bf16 tensors.
#include "cuda/gla/forward_instances.cuh"

TANDEM_KEY_VALUE_INSTANCES(__nv_bfloat16)
