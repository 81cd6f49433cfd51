// gla_forward_kernel on split sequences of fp16 tensors.
#include "cuda/gla/forward_instances.cuh"

TANDEM_FORWARD_INSTANCES(__half, true, Walk::kOutput)
