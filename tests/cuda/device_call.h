// A call on a GPU that can be repeated: on a stream of its own, as a graph, on poisoned outputs.
#pragma once

#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "cli/calls/backend.h"
#include "cli/calls/check.h"
#include "tandem/error.h"

namespace tandem::tools {

inline void require(cudaError_t status) {
  if (status != cudaSuccess) throw CudaError(cudaGetErrorString(status));
}

/// Does not wait for the default stream, on which the tools copy.
struct SideStream {
  SideStream() { require(cudaStreamCreateWithFlags(&handle, cudaStreamNonBlocking)); }
  ~SideStream() { cudaStreamDestroy(handle); }
  SideStream(const SideStream&) = delete;
  SideStream& operator=(const SideStream&) = delete;
  cudaStream_t handle = nullptr;
};

/// A call on tensors and scratch memory of its own.
class DeviceCall {
 public:
  DeviceCall(const Operation& operation, const Case& one, std::uint64_t seed = 1)
      : operation_(operation),
        set_(operation.make(one, DType::kBFloat16, seed)),
        placement_(set_, Device::cuda()),
        workspace_bytes_(operation.workspace_bytes(set_, placement_.bases(), placement_.device())),
        workspace_(0, std::max<std::size_t>(workspace_bytes_, 256)) {}

  void enqueue(cudaStream_t stream) {
    operation_.call(set_, placement_.bases(), placement_.device(),
                    {.stream = {stream}, .workspace = {workspace_.data(), workspace_bytes_}});
  }

  /// NaN in all outputs: what is there afterwards was written by the calls behind this.
  void poison(cudaStream_t stream) {
    for (const NamedTensor& tensor : set_.tensors) {
      if (!tensor.output) continue;
      auto* data = static_cast<std::byte*>(placement_.bases()[tensor.buffer]) + tensor.offset;
      require(cudaMemsetAsync(data, 0xff, span_bytes(tensor), stream));
    }
  }

  /// Puts other contents in the place of an input.
  void replace(const char* name, const TensorSet& from) {
    const std::size_t i = set_.get(name).buffer;
    gpu::upload(placement_.bases()[i], from.buffers[i].data(), from.buffers[i].size());
    gpu::synchronize(placement_.device().index);
  }

  /// Copies another call's inputs over its own, on a stream.
  void take_inputs(DeviceCall& from, cudaStream_t stream) {
    for (const NamedTensor& tensor : set_.tensors) {
      if (tensor.output) continue;
      require(cudaMemcpyAsync(placement_.bases()[tensor.buffer],
                              from.placement_.bases()[tensor.buffer],
                              set_.buffers[tensor.buffer].size(), cudaMemcpyDefault, stream));
    }
  }

  Buffers results() { return placement_.download(); }  // waits for every stream
  const TensorSet& set() const { return set_; }
  std::vector<OutputError> compare(const Buffers& after, bool sampled) const {
    return operation_.expect(set_, sampled)->compare(set_, after);
  }

 private:
  const Operation& operation_;
  TensorSet set_;
  Placement placement_;
  std::size_t workspace_bytes_;
  gpu::Memory workspace_;
};

/// A call as an executable graph.
class Graph {
 public:
  Graph(DeviceCall& call, cudaStream_t stream) {
    call.enqueue(stream);  // loads the kernels, which a capture must not
    require(cudaStreamSynchronize(stream));
    require(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
    call.enqueue(stream);
    cudaGraph_t graph = nullptr;
    require(cudaStreamEndCapture(stream, &graph));
    const cudaError_t status = cudaGraphInstantiate(&executable_, graph, 0);
    cudaGraphDestroy(graph);
    require(status);
  }
  ~Graph() { cudaGraphExecDestroy(executable_); }
  Graph(const Graph&) = delete;
  Graph& operator=(const Graph&) = delete;

  void replay(cudaStream_t stream) { require(cudaGraphLaunch(executable_, stream)); }

 private:
  cudaGraphExec_t executable_ = nullptr;
};

}  // namespace tandem::tools
