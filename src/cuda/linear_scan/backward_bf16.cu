// The products of linear_scan_backward on bf16 tensors.
#include "cuda/linear_scan/backward_instances.cuh"

TANDEM_LINEAR_SCAN_BACKWARD(__nv_bfloat16)
