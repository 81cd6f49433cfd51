// Where and with what scratch memory a call runs.
#pragma once

#include <cstddef>

namespace tandem {

/// A cudaStream_t, kept opaque so that public headers need no CUDA. Null is the default stream.
struct Stream {
  void* handle = nullptr;
};

/// Scratch memory on the tensors' device, at least as large as the op's `*_workspace_bytes` says
/// and aligned to 256 bytes. The call uses it until its work on the stream is done.
struct Workspace {
  void* data = nullptr;
  std::size_t bytes = 0;
};

/// What a call runs with. Without a workspace a call that needs one takes stream-ordered memory for
/// its duration.
struct Context {
  Stream stream = {};  ///< ignored by the CPU backend
  Workspace workspace = {};
};

}  // namespace tandem
