// The CUDA-graph timer.
#include <deque>
#include <string>
#include <vector>

#include "bench.h"
#include "status.h"

namespace tandem::bench {
namespace {

constexpr int kWarmUpReplays = 5;

void require_sets(const tandem_bench_timed& call) {
  if (call.enqueue != nullptr && call.sets >= 1) return;
  throw std::runtime_error(
      "[tandem_bench_time] enqueue and sets of each call must be set, got sets " +
      std::to_string(call.sets));
}

void enqueue(const tandem_bench_timed& call, int set, cudaStream_t stream) {
  if (call.enqueue(call.user, set, stream) == 0) return;
  throw std::runtime_error("[tandem_bench_time] the measured call failed on buffer set " +
                           std::to_string(set));
}

/// Captures one call per buffer set as an executable graph.
class Graph {
 public:
  Graph(const tandem_bench_timed& call, cudaStream_t stream) {
    cudaGraph_t graph = nullptr;
    // why thread-local: what other threads do meanwhile does not spoil the capture.
    check(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal),
          "cudaStreamBeginCapture");
    try {
      for (int set = 0; set < call.sets; ++set) enqueue(call, set, stream);
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

void time_calls(int device, const tandem_bench_timed* calls, int count, int replays,
                double* samples_us) {
  if (calls == nullptr || samples_us == nullptr || count < 1 || replays < 1) {
    throw std::runtime_error(
        "[tandem_bench_time] calls, samples_us, count and replays must be set, got count " +
        std::to_string(count) + ", replays " + std::to_string(replays));
  }
  const DeviceScope scope(device);
  const Stream stream;
  std::deque<Graph> graphs;
  for (int i = 0; i < count; ++i) {
    require_sets(calls[i]);
    // Calls each set once, directly: that loads the kernels, which a capture must not, and shows
    // errors where they arise.
    for (int set = 0; set < calls[i].sets; ++set) enqueue(calls[i], set, stream);
    check(cudaStreamSynchronize(stream), "the measured call");
    graphs.emplace_back(calls[i], stream);
  }
  std::vector<Event> starts(count * replays), ends(count * replays);
  for (int i = 0; i < kWarmUpReplays; ++i) {
    for (const Graph& graph : graphs) graph.replay(stream);
  }
  for (int i = 0; i < replays; ++i) {
    for (int call = 0; call < count; ++call) {
      const int sample = call * replays + i;
      starts[sample].record(stream);
      graphs[call].replay(stream);
      ends[sample].record(stream);
    }
  }
  check(cudaStreamSynchronize(stream), "the measured graph");
  for (int sample = 0; sample < count * replays; ++sample) {
    samples_us[sample] =
        ends[sample].microseconds_since(starts[sample]) / calls[sample / replays].sets;
  }
}

}  // namespace
}  // namespace tandem::bench

int tandem_bench_time(int device, const tandem_bench_timed* calls, int count, int replays,
                      double* samples_us) {
  using namespace tandem::bench;
  return guarded([&] { time_calls(device, calls, count, replays, samples_us); });
}
