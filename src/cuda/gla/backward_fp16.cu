// The walks of a backward on fp16 tensors.
#include "cuda/gla/forward_instances.cuh"

TANDEM_FORWARD_INSTANCES(__half, false, Walk::kQuery)
TANDEM_FORWARD_INSTANCES(__half, false, Walk::kKey)
TANDEM_FORWARD_INSTANCES(__half, false, Walk::kValue)
