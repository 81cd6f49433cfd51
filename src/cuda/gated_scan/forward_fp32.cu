// gated_scan_forward_kernel on fp32 tensors.
#include "cuda/gated_scan/forward.cuh"

namespace tandem::cuda::gated_scan {

template ForwardKernel forward_kernel<NarrowConfig<float, float>>();
template ForwardKernel forward_kernel<NarrowStatesConfig<float, float>>();
template ForwardKernel forward_kernel<NarrowConfig<float, float, false>>();
template ForwardKernel forward_kernel<NarrowStatesConfig<float, float, false>>();

}  // namespace tandem::cuda::gated_scan
