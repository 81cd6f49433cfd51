// The backward by chunks on bf16 tensors.
#include "cuda/gla/backward_chunks_instances.cuh"

template void tandem::cuda::launch_chunk_backward<__nv_bfloat16>(const char*,
                                                                 const ChunkBackwardParams&, void*);
