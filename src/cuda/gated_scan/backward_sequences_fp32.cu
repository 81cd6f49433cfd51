// gated_scan_backward_kernel on fp32 tensors, a sequence per CTA.
#include "cuda/gated_scan/backward.cuh"

namespace tandem::cuda::gated_scan {

template BackwardKernel backward_kernel<PerSequence<NarrowBackwardConfig<float, float>>>();
template BackwardKernel backward_kernel<PerSequence<NarrowBackwardConfig<float, float, false>>>();

}  // namespace tandem::cuda::gated_scan
