#include "cuda/parts/wgmma.cuh"

#include "cuda/parts/barrier.cuh"
#include "cuda/parts/fragment.cuh"
#include "tests/parts/gpu_test.h"

namespace tandem::cuda {
namespace {

constexpr int kDepth = 64;  // contraction indices

/// Fills panels of 64 rows from a row-major [64, columns] matrix.
template <class Element>
__device__ void fill_panels(char* panels, const Element* matrix, int columns) {
  for (int i = threadIdx.x; i < 64 * columns; i += blockDim.x) {
    const int row = i / columns, column = i % columns;
    char* panel = panels + column / 64 * panel_bytes(64);
    *reinterpret_cast<Element*>(panel + panel_offset(row, column % 64 / 8) + column % 8 * 2) =
        matrix[i];
  }
}

/// D[64,N] = start + A B. `a` is [64,64], stored row-major as A (K-major) or as its transpose
/// (MN-major); `b` is stored as [N=64,K] (K-major) or [K,N] (MN-major).
template <class Element, int N, Major kA, Major kB, bool kRegisters>
__global__ void multiply(const Element* a, const Element* b, float start, float* d) {
  extern __shared__ __align__(1024) char shared[];
  char* panel_a = shared;
  char* panel_b = shared + panel_bytes(64);
  fill_panels(panel_a, a, 64);
  fill_panels(panel_b, b, kB == Major::K ? kDepth : N);
  fence_shared_for_async_proxy();
  __syncthreads();
  std::uint32_t operand[kDepth / 16][4];
  for (int step = 0; kRegisters && step < kDepth / 16; ++step) {
    load_columns(panel_a, step, operand[step]);  // `a` comes transposed: [K,M]
  }
  float acc[N / 2];
  for (float& value : acc) value = start;
  fence_registers(acc);
  wgmma_begin();
#pragma unroll
  for (int step = 0; step < kDepth / 16; ++step) {
    const auto of_b =
        kB == Major::K ? k_major_descriptor(panel_b, step) : mn_major_descriptor(panel_b, step);
    const bool accumulate = start != 0.0f || step > 0;
    if constexpr (kRegisters) {
      wgmma_rs<Element, N, kB>(acc, operand[step], of_b, accumulate);
    } else {
      const auto of_a =
          kA == Major::K ? k_major_descriptor(panel_a, step) : mn_major_descriptor(panel_a, step);
      wgmma_ss<Element, N, kA, kB>(acc, of_a, of_b, accumulate);
    }
  }
  wgmma_commit();
  wgmma_wait<0>();
  fence_registers(acc);
  for (int i = 0; i < N / 2; ++i) {
    const int row = fragment_row() + i / 2 % 2 * 8;
    d[row * N + fragment_column(i / 4) + i % 2] = acc[i];
  }
}

template <class Element>
std::vector<Element> transposed(const std::vector<Element>& matrix, int rows, int columns) {
  std::vector<Element> result(matrix.size());
  for (int i = 0; i < rows; ++i) {
    for (int j = 0; j < columns; ++j) result[j * rows + i] = matrix[i * columns + j];
  }
  return result;
}

class GpuWgmma : public GpuPart {
 protected:
  template <class Element, int N, Major kA, Major kB, bool kRegisters>
  void check() {
    for (const float start : {0.0f, 3.0f}) {
      const auto a = random_elements<Element>(64 * kDepth, 1);
      const auto b = random_elements<Element>(kDepth * N, 2);  // [K,N]
      DeviceArray<Element> device_a(kA == Major::MN || kRegisters ? transposed(a, 64, kDepth) : a);
      DeviceArray<Element> device_b(kB == Major::K ? transposed(b, kDepth, N) : b);
      DeviceArray<float> d(64 * N);
      multiply<Element, N, kA, kB, kRegisters>
          <<<1, 128, 3 * panel_bytes(64)>>>(device_a.device, device_b.device, start, d.device);
      finish();
      std::vector<double> expected(64 * N, start);
      for (int i = 0; i < 64; ++i) {
        for (int k = 0; k < kDepth; ++k) {
          for (int j = 0; j < N; ++j) {
            expected[i * N + j] += double(float(a[i * kDepth + k])) * double(float(b[k * N + j]));
          }
        }
      }
      EXPECT_LT(relative_rms(d.download(), expected), 1e-6) << "start " << start;
    }
  }
};

TEST_F(GpuWgmma, BothOperandsInSharedMemory) {
  check<__nv_bfloat16, 64, Major::K, Major::K, false>();
  check<__nv_bfloat16, 64, Major::MN, Major::K, false>();
  check<__half, 64, Major::K, Major::K, false>();
  check<__half, 64, Major::MN, Major::K, false>();
  check<__half, 128, Major::K, Major::MN, false>();
}

TEST_F(GpuWgmma, FirstOperandInRegisters) {
  check<__nv_bfloat16, 64, Major::K, Major::K, true>();
  check<__nv_bfloat16, 64, Major::K, Major::MN, true>();
  check<__nv_bfloat16, 128, Major::K, Major::MN, true>();
  check<__half, 64, Major::K, Major::K, true>();
  check<__half, 64, Major::K, Major::MN, true>();
  check<__half, 128, Major::K, Major::MN, true>();
}

}  // namespace
}  // namespace tandem::cuda
