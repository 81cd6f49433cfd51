// linear_scan_forward_kernel on bf16 tensors.
#include "cuda/linear_scan/forward_instances.cuh"

TANDEM_LINEAR_SCAN_INSTANCES(__nv_bfloat16)
