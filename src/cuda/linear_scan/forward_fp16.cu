// linear_scan_forward_kernel on fp16 tensors.
#include "cuda/linear_scan/forward_instances.cuh"

TANDEM_LINEAR_SCAN_INSTANCES(__half)
