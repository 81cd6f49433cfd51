// gla_forward_kernel on bf16 tensors.
#include "cuda/gla/forward.cuh"

namespace tandem::cuda {

template void launch_forward<ForwardConfig<__nv_bfloat16, 64, 64>>(const char*,
                                                                   const GlaForwardParams&, void*);
template void launch_forward<ForwardConfig<__nv_bfloat16, 64, 128>>(const char*,
                                                                    const GlaForwardParams&, void*);
template void launch_forward<ForwardConfig<__nv_bfloat16, 128, 64>>(const char*,
                                                                    const GlaForwardParams&, void*);
template void launch_forward<ForwardConfig<__nv_bfloat16, 128, 128>>(const char*,
                                                                     const GlaForwardParams&,
                                                                     void*);

}  // namespace tandem::cuda
