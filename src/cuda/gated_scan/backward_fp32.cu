// gated_scan_backward_kernel on fp32 tensors.
#include "cuda/gated_scan/backward.cuh"

namespace tandem::cuda::gated_scan {

template BackwardKernel backward_kernel<NarrowBackwardConfig<float, float>>();
template BackwardKernel backward_kernel<NarrowBackwardConfig<float, float, false>>();

}  // namespace tandem::cuda::gated_scan
