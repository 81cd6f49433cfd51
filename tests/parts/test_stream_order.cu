#include "cuda/parts/stream_order.cuh"

#include <functional>

#include "cuda/runtime/launch.h"
#include "tests/parts/gpu_test.h"

namespace tandem::cuda {
namespace {

// Few CTAs, so that those of the next kernel find room beside them.
constexpr unsigned kBlocks = 66, kThreads = 128, kCount = kBlocks * kThreads;

struct Words {
  const unsigned* from;
  unsigned* to;
  unsigned add;
  const unsigned* other = nullptr;
};

__device__ unsigned own_index() { return blockIdx.x * kThreads + threadIdx.x; }
/// Of a word that another CTA wrote.
__device__ unsigned far_index() { return (own_index() * 5 + 4321) % kCount; }

/// Some threads write late: a kernel that does not wait for this one reads what was there before.
__device__ void write(const Words& words, unsigned value) {
  if (blockIdx.x % 3 == 0) __nanosleep(2000);
  words.to[own_index()] = value + words.add;
}

__global__ void follow(const __grid_constant__ Words words) {
  follow_stream();
  write(words, words.from[far_index()]);
}

__global__ void follow_before_own_kernel(const __grid_constant__ Words words) {
  follow_stream_before_own_kernel();
  write(words, words.from[far_index()]);
}

/// Needs what came before the last kernel, runs beside that one and ends after it.
__global__ void follow_at_the_end(const __grid_constant__ Words words) {
  words.to[own_index()] = words.from[far_index()] + words.add;
  if (blockIdx.x == 0) follow_stream();
}

/// 0 where `other` differs.
__global__ void follow_both(const __grid_constant__ Words words) {
  follow_stream();
  const unsigned value = words.from[far_index()];
  write(words, words.other[far_index()] == value ? value : 0);
}

class GpuStreamOrder : public GpuPart {
 protected:
  static constexpr int kRounds = 50, kReplays = 20;

  void SetUp() override {
    GpuPart::SetUp();
    if (IsSkipped()) return;
    ASSERT_EQ(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), cudaSuccess);
  }
  void TearDown() override {
    if (stream_ != nullptr) cudaStreamDestroy(stream_);
  }

  void launch(void (*kernel)(Words), const Words& words) {
    launch_kernel("test", kernel, {.blocks = kBlocks, .threads = kThreads}, stream_, words);
  }

  /// Enqueues kRounds rounds, each of which adds one to every word of `result`: kReplays times as
  /// launches, and as often as a graph.
  void check(DeviceArray<unsigned>& result, const std::function<void()>& round) {
    ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess);  // the arrays are filled
    const auto all_rounds = [&] {
      for (int i = 0; i < kRounds; ++i) round();
    };
    for (int i = 0; i < kReplays; ++i) all_rounds();
    finish();
    expect_all(result, kReplays * kRounds);

    cudaGraph_t graph = nullptr;
    cudaGraphExec_t executable = nullptr;
    ASSERT_EQ(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeThreadLocal), cudaSuccess);
    all_rounds();
    ASSERT_EQ(cudaStreamEndCapture(stream_, &graph), cudaSuccess);
    ASSERT_EQ(cudaGraphInstantiate(&executable, graph, 0), cudaSuccess);
    for (int i = 0; i < kReplays; ++i) {
      ASSERT_EQ(cudaGraphLaunch(executable, stream_), cudaSuccess);
    }
    finish();
    cudaGraphExecDestroy(executable);
    cudaGraphDestroy(graph);
    expect_all(result, 2 * kReplays * kRounds);
  }

  static void expect_all(DeviceArray<unsigned>& words, unsigned expected) {
    words.download();
    for (unsigned i = 0; i < kCount; ++i) ASSERT_EQ(words.host[i], expected) << i;
  }

 private:
  cudaStream_t stream_ = nullptr;
};

TEST_F(GpuStreamOrder, AKernelSeesWhatTheLastOneWrote) {
  DeviceArray<unsigned> result(kCount), between(kCount);
  check(result, [&] {
    launch(follow, {result.device, between.device, 1});
    launch(follow, {between.device, result.device, 0});
  });
}

TEST_F(GpuStreamOrder, AKernelSeesWhatWasPreparedForIt) {
  DeviceArray<unsigned> result(kCount), prepared(kCount);
  check(result, [&] {
    launch(follow_before_own_kernel, {result.device, prepared.device, 0});
    launch(follow, {prepared.device, result.device, 1});
  });
}

TEST_F(GpuStreamOrder, AKernelBesideTheLastOneEndsAfterIt) {
  DeviceArray<unsigned> result(kCount), slow(kCount), quick(kCount);
  check(result, [&] {
    launch(follow, {result.device, slow.device, 1});
    launch(follow_at_the_end, {result.device, quick.device, 1});
    launch(follow_both, {slow.device, result.device, 0, quick.device});
  });
}

}  // namespace
}  // namespace tandem::cuda
