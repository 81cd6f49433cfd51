// How a kernel follows those before it on its stream. Every launch of Tandem may start while the
// kernel before it still runs (programmatic dependent launch, cuda/runtime/launch.h): its
// instructions, descriptors and barriers are then ready when that one ends.
#pragma once

#include <cuda_device_runtime_api.h>

namespace tandem::cuda {

/// Waits until all that the stream had before this kernel is complete and visible, then lets the
/// next kernel be launched. Every thread, before its first access to memory outside of the CTA. why
/// in this order: the next kernel may read, before its own wait, what came before this one. To run
/// beside the kernel before it, a kernel that needs nothing of it calls this last, in one CTA, so
/// that it ends after the other, which called it first.
__device__ inline void follow_stream() {
  cudaGridDependencySynchronize();
  cudaTriggerProgrammaticLaunchCompletion();
}

/// Follows the stream in a kernel that prepares memory for the next kernel of the same call. That
/// one calls follow_stream() itself before it reads anything, so its launch need not wait.
__device__ inline void follow_stream_before_own_kernel() {
  cudaTriggerProgrammaticLaunchCompletion();
  cudaGridDependencySynchronize();
}

}  // namespace tandem::cuda
