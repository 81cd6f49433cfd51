// gated_scan_forward_kernel on fp32 tensors, a sequence per CTA.
#include "cuda/gated_scan/forward.cuh"

namespace tandem::cuda::gated_scan {

template ForwardKernel forward_kernel<PerSequence<NarrowConfig<float, float>>>();
template ForwardKernel forward_kernel<PerSequence<NarrowStatesConfig<float, float>>>();
template ForwardKernel forward_kernel<PerSequence<NarrowConfig<float, float, false>>>();
template ForwardKernel forward_kernel<PerSequence<NarrowStatesConfig<float, float, false>>>();

}  // namespace tandem::cuda::gated_scan
