// The products of linear_scan_backward on fp16 tensors.
#include "cuda/linear_scan/backward_instances.cuh"

TANDEM_LINEAR_SCAN_BACKWARD(__half)
