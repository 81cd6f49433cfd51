// gla_forward_kernel on fp16 tensors.
#include "cuda/gla/forward.cuh"

namespace tandem::cuda {

template void launch_forward<ForwardConfig<__half, 64, 64>>(const char*, const GlaForwardParams&,
                                                            void*);
template void launch_forward<ForwardConfig<__half, 64, 128>>(const char*, const GlaForwardParams&,
                                                             void*);
template void launch_forward<ForwardConfig<__half, 128, 64>>(const char*, const GlaForwardParams&,
                                                             void*);
template void launch_forward<ForwardConfig<__half, 128, 128>>(const char*, const GlaForwardParams&,
                                                              void*);

}  // namespace tandem::cuda
