// gated_scan_forward_kernel on fp16 tensors.
#include "cuda/gated_scan/forward.cuh"

namespace tandem::cuda {

using Element = __half;

template ScanForwardKernel forward_kernel<ScanWideConfig<Element, Element>>();
template ScanForwardKernel forward_kernel<ScanNarrowConfig<Element, Element>>();
template ScanForwardKernel forward_kernel<ScanSlimConfig<Element, Element>>();
template ScanForwardKernel forward_kernel<ScanNarrowStatesConfig<Element, Element>>();
template ScanForwardKernel forward_kernel<ScanNarrowConfig<Element, Element, false>>();
template ScanForwardKernel forward_kernel<ScanNarrowStatesConfig<Element, Element, false>>();
template ScanForwardKernel forward_kernel<ScanNarrowConfig<Element, float>>();
template ScanForwardKernel forward_kernel<ScanNarrowStatesConfig<Element, float>>();
template ScanForwardKernel forward_kernel<ScanNarrowConfig<Element, float, false>>();
template ScanForwardKernel forward_kernel<ScanNarrowStatesConfig<Element, float, false>>();

}  // namespace tandem::cuda
