// gated_scan_forward_kernel on bf16 tensors.
#include "cuda/gated_scan/forward.cuh"

namespace tandem::cuda::gated_scan {

using Element = __nv_bfloat16;

template ForwardKernel forward_kernel<WideConfig<Element, Element>>();
template ForwardKernel forward_kernel<NarrowConfig<Element, Element>>();
template ForwardKernel forward_kernel<SlimConfig<Element, Element>>();
template ForwardKernel forward_kernel<NarrowStatesConfig<Element, Element>>();
template ForwardKernel forward_kernel<NarrowConfig<Element, Element, false>>();
template ForwardKernel forward_kernel<NarrowStatesConfig<Element, Element, false>>();
template ForwardKernel forward_kernel<NarrowConfig<Element, float>>();
template ForwardKernel forward_kernel<NarrowStatesConfig<Element, float>>();
template ForwardKernel forward_kernel<NarrowConfig<Element, float, false>>();
template ForwardKernel forward_kernel<NarrowStatesConfig<Element, float, false>>();

}  // namespace tandem::cuda::gated_scan
