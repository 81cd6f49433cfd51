// gla_forward_kernel on fp16 tensors.
#include "cuda/gla/forward_instances.cuh"

TANDEM_FORWARD_INSTANCES(__half, false, Walk::kOutput)
