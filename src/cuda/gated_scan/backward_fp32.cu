// gated_scan_backward_kernel on fp32 tensors.
#include "cuda/gated_scan/backward.cuh"

namespace tandem::cuda {

template ScanBackwardKernel backward_kernel<ScanNarrowBackwardConfig<float, float>>();
template ScanBackwardKernel backward_kernel<ScanNarrowBackwardConfig<float, float, false>>();

}  // namespace tandem::cuda
