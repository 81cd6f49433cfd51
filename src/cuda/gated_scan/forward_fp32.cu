// gated_scan_forward_kernel on fp32 tensors.
#include "cuda/gated_scan/forward.cuh"

namespace tandem::cuda {

template ScanForwardKernel forward_kernel<ScanNarrowConfig<float, float>>();
template ScanForwardKernel forward_kernel<ScanNarrowStatesConfig<float, float>>();
template ScanForwardKernel forward_kernel<ScanNarrowConfig<float, float, false>>();
template ScanForwardKernel forward_kernel<ScanNarrowStatesConfig<float, float, false>>();

}  // namespace tandem::cuda
