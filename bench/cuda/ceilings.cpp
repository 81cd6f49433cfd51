// What this device can do at this moment: a large copy, and a large bf16 matrix product by
// cuBLASLt.
#include <algorithm>
#include <cstdint>
#include <vector>

#include "bench.h"
#include "cublaslt.h"
#include "random.h"
#include "status.h"

namespace tandem::bench {
namespace {

/// Median microseconds of `samples` runs of `enqueue(stream)`, after `warm_up` more.
template <typename Enqueue>
double median_us(cudaStream_t stream, int warm_up, int samples, const Enqueue& enqueue) {
  std::vector<Event> starts(samples), ends(samples);
  for (int i = 0; i < warm_up; ++i) enqueue(stream);
  for (int i = 0; i < samples; ++i) {
    starts[i].record(stream);
    enqueue(stream);
    ends[i].record(stream);
  }
  check(cudaStreamSynchronize(stream), "ceilings");
  std::vector<double> times(samples);
  for (int i = 0; i < samples; ++i) times[i] = ends[i].microseconds_since(starts[i]);
  std::nth_element(times.begin(), times.begin() + samples / 2, times.end());
  return times[samples / 2];
}

/// Bytes to copy: as many as fit, from 4 GiB down to 256 MiB, which is still well past the L2.
Buffer large_buffer(std::size_t bytes) {
  constexpr std::size_t kSmallest = std::size_t{256} << 20;
  while (bytes > kSmallest) {
    try {
      return Buffer(bytes);
    } catch (const std::runtime_error&) {
      bytes /= 2;
    }
  }
  return Buffer(kSmallest);
}

double measure_copy_tbps() {
  const Stream stream;
  const Buffer from = large_buffer(std::size_t{4} << 30);
  const Buffer to = large_buffer(from.bytes());
  const std::size_t bytes = to.bytes();
  fill_random_bf16(from.data(), bytes / 2, 1, stream);
  fill_random_bf16(to.data(), bytes / 2, 2, stream);
  const double us = median_us(stream, 5, 21, [&](cudaStream_t on) {
    check(cudaMemcpyAsync(to.data(), from.data(), bytes, cudaMemcpyDeviceToDevice, on),
          "cudaMemcpyAsync");
  });
  return 2.0 * static_cast<double>(bytes) / us * 1e-6;
}

/// D = A B of size^3 in bf16 with fp32 sums; A given by rows, B by columns (both "K-major").
class MatrixProduct {
 public:
  MatrixProduct(std::int64_t size, cudaStream_t stream)
      : a_(size * size * 2), b_(size * size * 2), d_(size * size * 2), workspace_(kWorkspaceBytes) {
    fill_random_bf16(a_.data(), size * size, 3, stream);
    fill_random_bf16(b_.data(), size * size, 4, stream);
    const cublasOperation_t transpose = CUBLAS_OP_T;
    lt_.check(lt_.Create(&library_.handle), "cublasLtCreate");
    lt_.check(lt_.MatmulDescCreate(&product_.handle, CUBLAS_COMPUTE_32F, CUDA_R_32F),
              "cublasLtMatmulDescCreate");
    lt_.check(lt_.MatmulDescSetAttribute(product_.handle, CUBLASLT_MATMUL_DESC_TRANSA, &transpose,
                                         sizeof(transpose)),
              "cublasLtMatmulDescSetAttribute");
    lt_.check(lt_.MatrixLayoutCreate(&layout_.handle, CUDA_R_16BF, size, size, size),
              "cublasLtMatrixLayoutCreate");
    lt_.check(lt_.MatmulPreferenceCreate(&preference_.handle), "cublasLtMatmulPreferenceCreate");
    lt_.check(lt_.MatmulPreferenceSetAttribute(preference_.handle,
                                               CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES,
                                               &kWorkspaceBytes, sizeof(kWorkspaceBytes)),
              "cublasLtMatmulPreferenceSetAttribute");
  }

  /// Returns what cuBLASLt's heuristic proposes, its favourite first.
  std::vector<cublasLtMatmulHeuristicResult_t> algorithms() const {
    constexpr int kMost = 8;
    std::vector<cublasLtMatmulHeuristicResult_t> found(kMost);
    int count = 0;
    lt_.check(lt_.MatmulAlgoGetHeuristic(library_.handle, product_.handle, layout_.handle,
                                         layout_.handle, layout_.handle, layout_.handle,
                                         preference_.handle, kMost, found.data(), &count),
              "cublasLtMatmulAlgoGetHeuristic");
    if (count == 0)
      throw std::runtime_error("[ceilings] cuBLASLt has no algorithm for the product");
    found.resize(count);
    return found;
  }

  void enqueue(const cublasLtMatmulAlgo_t& algorithm, cudaStream_t stream) const {
    const float alpha = 1.0f, beta = 0.0f;
    lt_.check(lt_.Matmul(library_.handle, product_.handle, &alpha, a_.data(), layout_.handle,
                         b_.data(), layout_.handle, &beta, d_.data(), layout_.handle, d_.data(),
                         layout_.handle, &algorithm, workspace_.data(), kWorkspaceBytes, stream),
              "cublasLtMatmul");
  }

 private:
  static constexpr std::size_t kWorkspaceBytes = std::size_t{64} << 20;

  const CublasLt& lt_ = cublaslt();
  Buffer a_, b_, d_, workspace_;
  CublasLtOwner<cublasLtHandle_t> library_{lt_.Destroy};
  CublasLtOwner<cublasLtMatmulDesc_t> product_{lt_.MatmulDescDestroy};
  CublasLtOwner<cublasLtMatrixLayout_t> layout_{lt_.MatrixLayoutDestroy};
  CublasLtOwner<cublasLtMatmulPreference_t> preference_{lt_.MatmulPreferenceDestroy};
};

double measure_bf16_tflops() {
  constexpr std::int64_t kSize = 8192;
  const Stream stream;
  const MatrixProduct product(kSize, stream);
  const auto algorithms = product.algorithms();
  std::size_t best = 0;
  double best_us = 0.0;
  for (std::size_t i = 0; i < algorithms.size(); ++i) {
    const double us =
        median_us(stream, 2, 5, [&](cudaStream_t on) { product.enqueue(algorithms[i].algo, on); });
    if (i == 0 || us < best_us) {
      best = i;
      best_us = us;
    }
  }
  // why: half a second of work first; before the power limit acts, clocks promise more than they
  // keep.
  const int warm_up = static_cast<int>(std::clamp(5e5 / best_us, 5.0, 1000.0));
  const double us = median_us(stream, warm_up, 51,
                              [&](cudaStream_t on) { product.enqueue(algorithms[best].algo, on); });
  constexpr double kFlops = 2.0 * kSize * kSize * kSize;
  return kFlops / us * 1e-6;
}

}  // namespace
}  // namespace tandem::bench

int tandem_bench_ceilings(int device, double* copy_tbps, double* bf16_tflops) {
  using namespace tandem::bench;
  return guarded([&] {
    const DeviceScope scope(device);
    *copy_tbps = measure_copy_tbps();
    *bf16_tflops = measure_bf16_tflops();
  });
}
