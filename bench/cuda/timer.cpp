// The CUDA-graph timer.
#include <string>
#include <vector>

#include "bench.h"
#include "status.h"

namespace tandem::bench {
namespace {

constexpr int kWarmUpReplays = 5;

void enqueue(tandem_bench_enqueue call, void* user, int set, cudaStream_t stream) {
  if (call(user, set, stream) == 0) return;
  throw std::runtime_error("[tandem_bench_time] the measured call failed on buffer set " +
                           std::to_string(set));
}

/// Captures one call per buffer set as an executable graph.
class Graph {
 public:
  Graph(tandem_bench_enqueue call, void* user, int sets, cudaStream_t stream) {
    cudaGraph_t graph = nullptr;
    // why thread-local: what other threads do meanwhile does not spoil the capture.
    check(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal),
          "cudaStreamBeginCapture");
    try {
      for (int set = 0; set < sets; ++set) enqueue(call, user, set, stream);
    } catch (...) {
      cudaStreamEndCapture(stream, &graph);
      if (graph != nullptr) cudaGraphDestroy(graph);
      cudaGetLastError();
      throw;
    }
    check(cudaStreamEndCapture(stream, &graph), "cudaStreamEndCapture");
    const cudaError_t status = cudaGraphInstantiate(&executable_, graph, 0);
    cudaGraphDestroy(graph);
    check(status, "cudaGraphInstantiate");
  }
  ~Graph() { cudaGraphExecDestroy(executable_); }
  Graph(const Graph&) = delete;
  Graph& operator=(const Graph&) = delete;

  void replay(cudaStream_t stream) const {
    check(cudaGraphLaunch(executable_, stream), "cudaGraphLaunch");
  }

 private:
  cudaGraphExec_t executable_ = nullptr;
};

void time_calls(int device, tandem_bench_enqueue call, void* user, int sets, int replays,
                double* samples_us) {
  if (call == nullptr || samples_us == nullptr || sets < 1 || replays < 1) {
    throw std::runtime_error(
        "[tandem_bench_time] call, samples_us, sets and replays must be set, got sets " +
        std::to_string(sets) + ", replays " + std::to_string(replays));
  }
  const DeviceScope scope(device);
  const Stream stream;
  // Calls each set once, directly: that loads the kernels, which a capture must not, and shows
  // errors where they arise.
  for (int set = 0; set < sets; ++set) enqueue(call, user, set, stream);
  check(cudaStreamSynchronize(stream), "the measured call");
  const Graph graph(call, user, sets, stream);
  std::vector<Event> starts(replays), ends(replays);
  for (int i = 0; i < kWarmUpReplays; ++i) graph.replay(stream);
  for (int i = 0; i < replays; ++i) {
    starts[i].record(stream);
    graph.replay(stream);
    ends[i].record(stream);
  }
  check(cudaStreamSynchronize(stream), "the measured graph");
  for (int i = 0; i < replays; ++i) samples_us[i] = ends[i].microseconds_since(starts[i]) / sets;
}

}  // namespace
}  // namespace tandem::bench

int tandem_bench_time(int device, tandem_bench_enqueue call, void* user, int sets, int replays,
                      double* samples_us) {
  using namespace tandem::bench;
  return guarded([&] { time_calls(device, call, user, sets, replays, samples_us); });
}
