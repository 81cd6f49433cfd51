// The backward by chunks on fp16 tensors.
#include "cuda/gla/backward_chunks_instances.cuh"

template void tandem::cuda::launch_chunk_backward<__half>(const char*, const ChunkBackwardParams&,
                                                          void*);
