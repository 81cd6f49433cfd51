// gated_scan_decay, gated_scan_carry and its backward on fp32 tensors.
#include "cuda/gated_scan/carry_instances.cuh"

namespace tandem::cuda::gated_scan {

constexpr int kChannels = kVectorChannels<float>;
template void launch_decay<float, kChannels>(const char*, const GatedScanDecayProblem&, void*);
template void launch_decay<float, 1>(const char*, const GatedScanDecayProblem&, void*);
TANDEM_INSTANCES_CARRY_OF(float, float, kChannels)
TANDEM_INSTANCES_CARRY_OF(float, float, 1)

}  // namespace tandem::cuda::gated_scan
