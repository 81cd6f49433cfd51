// gated_scan_backward_kernel on bf16 tensors.
#include "cuda/gated_scan/backward.cuh"

namespace tandem::cuda {

using Element = __nv_bfloat16;

template ScanBackwardKernel backward_kernel<ScanRowsBackwardConfig<Element, Element>>();
template ScanBackwardKernel backward_kernel<ScanNarrowBackwardConfig<Element, Element>>();
template ScanBackwardKernel backward_kernel<ScanNarrowBackwardConfig<Element, Element, false>>();
template ScanBackwardKernel backward_kernel<ScanNarrowBackwardConfig<Element, float>>();
template ScanBackwardKernel backward_kernel<ScanNarrowBackwardConfig<Element, float, false>>();

}  // namespace tandem::cuda
