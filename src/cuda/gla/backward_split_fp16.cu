// The walks of a backward on split sequences of fp16 tensors.
#include "cuda/gla/forward_instances.cuh"

TANDEM_FORWARD_INSTANCES(__half, true, Walk::kQuery)
TANDEM_FORWARD_INSTANCES(__half, true, Walk::kKey)
TANDEM_FORWARD_INSTANCES(__half, true, Walk::kValue)
