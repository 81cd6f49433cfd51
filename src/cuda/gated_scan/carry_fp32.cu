// gated_scan_decay and gated_scan_carry on fp32 tensors.
#include "cuda/gated_scan/carry.cuh"
#include "cuda/gated_scan/decay.cuh"

namespace tandem::cuda::gated_scan {

constexpr int kChannels = kVectorChannels<float>;
template void launch_decay<float, kChannels>(const char*, const GatedScanDecayProblem&, void*);
template void launch_decay<float, 1>(const char*, const GatedScanDecayProblem&, void*);
template void launch_carry<float, float, kChannels>(const char*, const GatedScanCarryProblem&,
                                                    void*);
template void launch_carry<float, float, 1>(const char*, const GatedScanCarryProblem&, void*);

}  // namespace tandem::cuda::gated_scan
