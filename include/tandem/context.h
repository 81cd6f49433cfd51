// Where and with what scratch memory a call runs.
#pragma once

#include <cstddef>
#include <functional>

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

/// What a call runs with. A call that needs a workspace and is given none asks `allocate` for it,
/// at most once and after every check, so that nobody has to ask for its size first; without
/// `allocate` it takes stream-ordered memory for its duration.
struct Context {
  Stream stream = {};  ///< ignored by the CPU backend
  Workspace workspace = {};
  /// Returns `bytes` > 0 as a Workspace would hold them. What it throws, the call throws.
  std::function<void*(std::size_t bytes)> allocate = {};
  /// Whether a sequence's results have the same bits alone, in a batch and packed with others:
  /// nothing then depends on B, T, N or cu_seqlens but what is summed over all sequences
  /// (docs/batch_invariance.md). Also asked for by TANDEM_BATCH_INVARIANT=1.
  bool batch_invariant = false;
};

}  // namespace tandem
