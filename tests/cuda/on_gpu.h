// A block on a GPU: copies of host tensors there, and its call as a graph.
#pragma once

#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>
#include <string>
#include <vector>

#include "device_call.h"
#include "tandem/context.h"
#include "tandem/device.h"
#include "tandem/tensor.h"

namespace tandem::tools {

class OnHopper : public testing::Test {
 protected:
  void SetUp() override {
    if (cuda_device_count() == 0) GTEST_SKIP() << cuda_unavailable_reason();
    if (device_properties(Device::cuda()).compute_major != 9) GTEST_SKIP() << "no Hopper GPU";
  }
};

/// Copies to or from the GPU. why more than cudaMemcpy: from pageable memory that returns before
/// the last bytes have arrived, and calls go on on streams that do not wait for the default one.
inline void copy_bytes(void* to, const void* from, std::size_t bytes) {
  require(cudaMemcpy(to, from, bytes, cudaMemcpyDefault));
  require(cudaStreamSynchronize(nullptr));
}

/// Copies of host tensors, and other memory, on the GPU.
class OnGpu {
 public:
  OnGpu() = default;
  ~OnGpu() {
    for (void* one : memory_) cudaFree(one);
  }
  OnGpu(const OnGpu&) = delete;
  OnGpu& operator=(const OnGpu&) = delete;

  TensorView operator()(const TensorView& host) {
    const auto bytes = static_cast<std::size_t>(host.shape.product() * size_of(host.dtype));
    void* const data = memory(bytes);
    copy_bytes(data, host.data, bytes);
    return TensorView::contiguous(data, host.dtype, host.shape, Device::cuda());
  }
  std::optional<TensorView> operator()(const std::optional<TensorView>& host) {
    return host ? std::optional((*this)(*host)) : std::nullopt;
  }
  void* memory(std::size_t bytes) {
    void*& data = memory_.emplace_back(nullptr);
    require(cudaMalloc(&data, bytes));
    return data;
  }
  Workspace workspace(std::size_t bytes) { return {memory(bytes), bytes}; }

 private:
  std::deque<void*> memory_;
};

/// Fills a tensor from another one's values, once the GPU is done; either may be on the GPU.
inline void copy(const TensorView& to, const TensorView& from) {
  require(cudaDeviceSynchronize());
  const auto bytes = static_cast<std::size_t>(to.shape.product() * size_of(to.dtype));
  copy_bytes(to.data, from.data, bytes);
}

/// A call of a block, made once and then captured on the same stream.
class CapturedCall {
 public:
  template <class Call>
  CapturedCall(const SideStream& stream, const Call& call) : stream_(stream.handle) {
    call();  // loads the kernels, which a capture must not
    require(cudaStreamSynchronize(stream_));
    require(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeThreadLocal));
    call();
    cudaGraph_t graph = nullptr;
    require(cudaStreamEndCapture(stream_, &graph));
    std::size_t count = 0;
    require(cudaGraphGetNodes(graph, nullptr, &count));
    std::vector<cudaGraphNode_t> nodes(count);
    require(cudaGraphGetNodes(graph, nodes.data(), &count));
    for (const cudaGraphNode_t node : nodes) launches_.push_back(name_of(node));
    const cudaError_t status = cudaGraphInstantiate(&executable_, graph, 0);
    cudaGraphDestroy(graph);
    require(status);
  }
  ~CapturedCall() { cudaGraphExecDestroy(executable_); }
  CapturedCall(const CapturedCall&) = delete;
  CapturedCall& operator=(const CapturedCall&) = delete;

  /// Names of what it launches, in no order that is promised.
  const std::vector<std::string>& launches() const { return launches_; }
  void replay() const { require(cudaGraphLaunch(executable_, stream_)); }

 private:
  static std::string name_of(cudaGraphNode_t node) {
    cudaGraphNodeType type{};
    require(cudaGraphNodeGetType(node, &type));
    if (type != cudaGraphNodeTypeKernel) return "no kernel";
    cudaKernelNodeParams params{};
    require(cudaGraphKernelNodeGetParams(node, &params));
    const char* name = nullptr;
    require(cudaFuncGetName(&name, params.func));
    return name;
  }

  cudaStream_t stream_;
  cudaGraphExec_t executable_ = nullptr;
  std::vector<std::string> launches_;
};

}  // namespace tandem::tools
