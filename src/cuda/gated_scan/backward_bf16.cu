// gated_scan_backward_kernel on bf16 tensors.
#include "cuda/gated_scan/backward.cuh"

namespace tandem::cuda::gated_scan {

using Element = __nv_bfloat16;

template BackwardKernel backward_kernel<RowsBackwardConfig<Element, Element>>();
template BackwardKernel backward_kernel<NarrowBackwardConfig<Element, Element>>();
template BackwardKernel backward_kernel<NarrowBackwardConfig<Element, Element, false>>();
template BackwardKernel backward_kernel<NarrowBackwardConfig<Element, float>>();
template BackwardKernel backward_kernel<NarrowBackwardConfig<Element, float, false>>();

}  // namespace tandem::cuda::gated_scan
