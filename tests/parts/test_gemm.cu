// The GEMM main loop in its three layouts, at extents that no tile divides, against fp64.
#include <cmath>
#include <limits>

#include "cuda/gemm/loop.cuh"
#include "cuda/runtime/tensor_map.h"
#include "tests/parts/gpu_test.h"

namespace tandem::cuda::gemm {
namespace {

using Element = __nv_bfloat16;
constexpr float kTermScale = 1.0f / 256;

struct ProductParams : Operands {
  float* result;  // [batch rows or slices, rows, columns]
};

template <class Config>
__global__ __launch_bounds__(Config::kThreads,
                             2) void product_kernel(const __grid_constant__ ProductParams params) {
  extern __shared__ __align__(1024) char shared_memory[];
  auto& shared = *reinterpret_cast<Shared<Config>*>(shared_memory);
  run<Config>(params, shared, [&](const Fragment& fragment) {
    store_fragment<float>(params, fragment, [&](int row) {
      const std::int64_t outer = fragment.outer;
      return params.result + (outer * params.rows + row) * params.columns;
    });
  });
}

/// A matrix [batches, rows, columns] on the device.
struct Matrix {
  int batches, rows, columns;
  DeviceArray<Element> values;

  Matrix(int batches, int rows, int columns, unsigned seed)
      : batches(batches),
        rows(rows),
        columns(columns),
        values(random_elements<Element>(std::size_t{1} * batches * rows * columns, seed)) {}
  double at(int batch, int row, int column) const {
    const std::size_t i = (std::size_t{1} * batch * rows + row) * columns + column;
    return static_cast<float>(values.host[i]);
  }
  CUtensorMap map(int box_rows) const {
    const StridedTensor tensor{values.device, std::int64_t{rows} * columns, columns, 0};
    const TensorMapPlan plan =
        plan_tile("", tensor, DType::kBFloat16, {batches, rows, 1, columns}, box_rows);
    EXPECT_EQ(plan.problem, "");
    return encode(plan);
  }
};

class GpuGemm : public GpuPart {
 protected:
  static constexpr int kRows = 200, kColumns = 136, kBatches = 2;

  template <Layout kLayout>
  static std::vector<float> multiply(ProductParams params, int outer) {
    using Config = gemm::Config<Element, kLayout>;
    const std::size_t count = std::size_t{1} * outer * kRows * kColumns;
    DeviceArray<float> result(std::vector<float>(count, std::nanf("")));
    params.rows = kRows;
    params.columns = kColumns;
    params.result = result.device;
    launch<Config>("gemm", product_kernel<Config>, params, nullptr);
    finish();
    return result.download();
  }

  /// Sums a(i) b(i) over i < depth for each element of the result.
  template <class A, class B>
  static std::vector<double> expected(int batches, int depth, A a, B b) {
    std::vector<double> result;
    for (int batch = 0; batch < batches; ++batch) {
      for (int row = 0; row < kRows; ++row) {
        for (int column = 0; column < kColumns; ++column) {
          double sum = 0;
          for (int i = 0; i < depth; ++i) sum += a(batch, row, i) * b(batch, column, i);
          result.push_back(sum);
        }
      }
    }
    return result;
  }
};

TEST_F(GpuGemm, RowsByRows) {
  constexpr int kDepth = 72;
  const Matrix a(kBatches, kRows, kDepth, 1), b(1, kColumns, kDepth, 2);
  ProductParams params{};
  params.a[0] = a.map(kTileRows);
  params.b = b.map(kTileColumns);
  params.B = kBatches;
  params.depth = kDepth;
  const auto exact = expected(
      kBatches, kDepth, [&](int batch, int row, int i) { return a.at(batch, row, i); },
      [&](int, int column, int i) { return b.at(0, column, i); });
  EXPECT_LT(relative_rms(multiply<Layout::kNT>(params, kBatches), exact), 1e-5);
}

TEST_F(GpuGemm, RowsByColumnsInTwoTerms) {
  constexpr int kDepth = 264;
  const Matrix low(kBatches, kRows, kDepth, 1), high(kBatches, kRows, kDepth, 2);
  const Matrix b(1, kDepth, kColumns, 3);
  ProductParams params{};
  params.a[0] = low.map(kTileRows);
  params.a[1] = high.map(kTileRows);
  params.terms = 2;
  params.term_scale = kTermScale;
  params.b = b.map(kTileDepth);
  params.B = kBatches;
  params.depth = kDepth;
  const auto exact = expected(
      kBatches, kDepth,
      [&](int batch, int row, int i) {
        return high.at(batch, row, i) + kTermScale * low.at(batch, row, i);
      },
      [&](int, int column, int i) { return b.at(0, i, column); });
  EXPECT_LT(relative_rms(multiply<Layout::kNN>(params, kBatches), exact), 1e-5);
}

TEST_F(GpuGemm, TokensAreContractedInSlices) {
  constexpr int kTokens = 150, kSlices = 4;
  const Matrix a(kBatches, kTokens, kRows, 1), b(kBatches, kTokens, kColumns, 2);
  ProductParams params{};
  params.a[0] = a.map(kTileDepth);
  params.b = b.map(kTileDepth);
  params.B = kBatches;
  params.T = kTokens;
  params.slices = kSlices;
  const auto exact = expected(
      1, kBatches * kTokens,
      [&](int, int row, int i) { return a.at(i / kTokens, i % kTokens, row); },
      [&](int, int column, int i) { return b.at(i / kTokens, i % kTokens, column); });
  const std::vector<float> slices = multiply<Layout::kTN>(params, kSlices);
  std::vector<float> sum(exact.size());
  for (std::size_t i = 0; i < slices.size(); ++i) sum[i % exact.size()] += slices[i];
  EXPECT_LT(relative_rms(sum, exact), 1e-5);
}

TEST_F(GpuGemm, TokensOutsideOfEverySequenceAreLeftOut) {
  constexpr int kTokens = 300, kBegin = 20, kEnd = 190;
  Matrix a(1, kTokens, kRows, 1);
  const Matrix b(1, kTokens, kColumns, 2);
  for (int token = 0; token < kTokens; ++token) {
    if (token >= kBegin && token < kEnd) continue;
    for (int row = 0; row < kRows; ++row) {
      a.values.host[std::size_t{1} * token * kRows + row] =
          Element(std::numeric_limits<float>::quiet_NaN());
    }
  }
  ASSERT_EQ(
      cudaMemcpy(a.values.device, a.values.host.data(), a.values.bytes(), cudaMemcpyHostToDevice),
      cudaSuccess);
  DeviceArray<std::int32_t> cu_seqlens({kBegin, 100, kEnd});
  ProductParams params{};
  params.a[0] = a.map(kTileDepth);
  params.b = b.map(kTileDepth);
  params.B = 1;
  params.T = kTokens;
  params.cu_seqlens = cu_seqlens.device;
  params.N = 2;
  const auto exact = expected(
      1, kEnd - kBegin, [&](int, int row, int i) { return a.at(0, kBegin + i, row); },
      [&](int, int column, int i) { return b.at(0, kBegin + i, column); });
  EXPECT_LT(relative_rms(multiply<Layout::kTN>(params, 1), exact), 1e-5);
}

}  // namespace
}  // namespace tandem::cuda::gemm
