// How a kernel follows those before it on its stream. Every launch of Tandem may start while the
// kernel before it still runs (programmatic dependent launch, cuda/runtime/launch.h): its
// instructions, descriptors and barriers are then ready when that one ends.
#pragma once

#include <cuda_device_runtime_api.h>

namespace tandem::cuda {

/// Every thread, before its first access to memory outside of the CTA: waits until all that the
/// stream had before this kernel is complete and visible, then lets the next kernel be launched.
/// why in this order: the next one may read, before its own wait, what came before this one.
/// A kernel that needs of the stream only what came before the last kernel runs beside it if that
/// one calls this first and it calls this last, in one CTA, so that it ends after the other.
__device__ inline void follow_stream() {
  cudaGridDependencySynchronize();
  cudaTriggerProgrammaticLaunchCompletion();
}

/// The same for a kernel that prepares memory for the next one of the same call, which calls
/// follow_stream() itself before it reads anything: that one's launch need not wait.
__device__ inline void follow_stream_before_own_kernel() {
  cudaTriggerProgrammaticLaunchCompletion();
  cudaGridDependencySynchronize();
}

}  // namespace tandem::cuda
