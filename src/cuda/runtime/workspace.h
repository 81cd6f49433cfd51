// A call's scratch memory: the caller's, given or asked for, or stream-ordered memory for the
// call's duration.
#pragma once

#include "cuda/runtime/cuda_check.h"
#include "cuda/runtime/plan.h"
#include "tandem/context.h"

namespace tandem::cuda {

class ScratchMemory {
 public:
  /// Takes the caller's workspace, asks for one, or takes memory on the current device. Throws
  /// InvalidArgument when the workspace is too small or not aligned to kWorkspaceAlignment; `op` is
  /// named in errors.
  ScratchMemory(const char* op, const Context& context, std::size_t bytes)
      : stream_(static_cast<cudaStream_t>(context.stream.handle)) {
    if (bytes == 0) return;
    Workspace workspace = context.workspace;
    if (workspace.data == nullptr && context.allocate) {
      workspace = {context.allocate(bytes), bytes};
      if (workspace.data == nullptr) {
        throw InvalidArgument("[" + std::string(op) + "] allocate must return " +
                              std::to_string(bytes) + " bytes, got a null pointer");
      }
    }
    if (workspace.data == nullptr) {
      cuda_check(cudaMallocAsync(&owned_, bytes, stream_), op);
      data_ = static_cast<char*>(owned_);
      return;
    }
    const std::string prefix = "[" + std::string(op) + "] workspace must ";
    if (workspace.bytes < bytes) {
      throw InvalidArgument(prefix + "have at least " + std::to_string(bytes) + " bytes, got " +
                            std::to_string(workspace.bytes));
    }
    if (reinterpret_cast<std::uintptr_t>(workspace.data) % kWorkspaceAlignment != 0) {
      throw InvalidArgument(prefix + "be aligned to " + std::to_string(kWorkspaceAlignment) +
                            " bytes");
    }
    data_ = static_cast<char*>(workspace.data);
  }
  ~ScratchMemory() {
    if (owned_ != nullptr) cudaFreeAsync(owned_, stream_);
  }
  ScratchMemory(const ScratchMemory&) = delete;
  ScratchMemory& operator=(const ScratchMemory&) = delete;

  template <class T>
  T* at(std::size_t offset) const {
    return reinterpret_cast<T*>(data_ + offset);
  }

 private:
  cudaStream_t stream_;
  void* owned_ = nullptr;
  char* data_ = nullptr;
};

/// The same call with a part of its workspace, for an op that it is made of.
inline Context with_workspace(const Context& context, void* data, std::size_t bytes) {
  Context inner = context;
  inner.workspace = {};
  if (bytes > 0) inner.workspace = {data, bytes};
  return inner;
}

}  // namespace tandem::cuda
