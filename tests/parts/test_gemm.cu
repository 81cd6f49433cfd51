// The GEMM main loop in its three layouts and tile widths, at extents that no tile divides, against
// fp64. There are few CTAs, so that each computes several tiles.
#include <cmath>
#include <limits>
#include <memory>

#include "cuda/gemm/loop.cuh"
#include "cuda/gemm/split.cuh"
#include "cuda/gemm/tail.cuh"
#include "cuda/gemm/target.cuh"
#include "tests/parts/gemm_test.h"

namespace tandem::cuda::gemm {
namespace {

constexpr int kCtas = 3;

template <int kTerms>
struct ProductParams : Operands<1, kTerms> {
  float* result;        // [batch rows, rows, columns]
  CUtensorMap rounded;  // the same in Element
};

template <int kTerms>
struct SumParams : ProductParams<kTerms> {
  Addend addend{};
};

template <int kTerms>
struct TailParams : ProductParams<kTerms> {
  int tiles, parts;
  Tail<kTerms> tail{};
  Element* rounded_values = nullptr;
};

struct BesideParams : ProductParams<1> {
  Beside beside{};
};

template <class Config, class Params>
__global__ __launch_bounds__(Config::kThreads,
                             1) void product_kernel(const __grid_constant__ Params params) {
  extern __shared__ __align__(1024) char shared_memory[];
  auto& shared = *reinterpret_cast<Shared<Config>*>(shared_memory);
  run<Config>(params, shared,
              [&](const Fragment<Config::kColumns>& fragment, PanelStore<Config>& store) {
                if constexpr (HasTail<Params>) {
                  if (fragment.place >= 0) return store_part<Config>(params, fragment);
                }
                store_fragment<float>(fragment, params.rows, params.columns[0], [&](int row) {
                  const std::int64_t outer = fragment.outer;
                  return params.result + (outer * params.rows + row) * params.columns[0];
                });
                store.template store_all<Element>(params.rounded, params.columns[0], fragment);
              });
}

template <class Config, class Params>
__global__ __launch_bounds__(kSumThreads) void sums_kernel(const __grid_constant__ Params params) {
  follow_stream();
  sum_tail<Config>(params, [&](const float(&values)[4], int row, int, int column) {
    for (int i = 0; i < 4; ++i) {
      const int row_of = row + i / 2 * 8, column_of = column + i % 2;
      if (row_of >= params.rows || column_of >= params.columns[0]) continue;
      params.result[row_of * params.columns[0] + column_of] = values[i];
      params.rounded_values[row_of * params.columns[0] + column_of] = Element(values[i]);
    }
  });
}

template <class ConfigT>
class GpuGemm : public GpuPart {
 protected:
  using Config = ConfigT;
  static constexpr Layout kLayout = Config::kLayout;
  static constexpr int kRows = 424, kColumns = 328, kBatches = 2;  // 4 x 2 tiles or more

  /// A [batches, rows, depth] and B [columns, depth], or as the layout has them.
  static Matrix make_a(int batches, int depth, unsigned seed) {
    return k_major_a(kLayout) ? Matrix(batches, kRows, depth, seed)
                              : Matrix(batches, depth, kRows, seed);
  }
  static Matrix make_b(int batches, int depth, unsigned seed) {
    return k_major_b(kLayout) ? Matrix(1, kColumns, depth, seed)
                              : Matrix(kLayout == Layout::kTN ? batches : 1, depth, kColumns, seed);
  }
  static double a_at(const Matrix& a, int batch, int row, int i) {
    return k_major_a(kLayout) ? a.at(batch, row, i) : a.at(batch, i, row);
  }
  static double b_at(const Matrix& b, int batch, int column, int i) {
    return k_major_b(kLayout) ? b.at(0, column, i) : b.at(b.batches == 1 ? 0 : batch, i, column);
  }
  static CUtensorMap map_a(const Matrix& a) { return a.map(box_rows_a(kLayout, kRows)); }
  static CUtensorMap map_b(const Matrix& b) { return b.map(box_rows_b(kLayout, Config::kColumns)); }
  /// How many results a product of so many batches has.
  static int outer(int batches) { return kLayout == Layout::kTN ? 1 : batches; }

  /// Runs the kernel and returns its result in fp32; what TMA stored must be its rounding.
  template <class Params>
  static std::vector<float> multiply(Params params, int outer) {
    const std::size_t count = std::size_t{1} * outer * kRows * kColumns;
    DeviceArray<float> result(std::vector<float>(count, std::nanf("")));
    const Matrix rounded(outer, kRows, kColumns, 9);
    params.rows = kRows;
    params.set_columns(0, kColumns, Config::kColumns);
    params.result = result.device;
    params.rounded = rounded.map(kTileDepth);
    std::unique_ptr<DeviceArray<float>> sums;
    if constexpr (HasTail<Params>) {
      const std::size_t sums_count = params.tiles * params.parts * kTileRows * Config::kColumns;
      sums = std::make_unique<DeviceArray<float>>(std::vector<float>(sums_count, std::nanf("")));
      cut_tail(params, kLayout, params.tiles, params.parts, sums->device);
      params.rounded_values = rounded.values.device;
    }
    launch<Config>("gemm", product_kernel<Config, Params>, params, kCtas, nullptr);
    if constexpr (HasTail<Params>) {
      launch_tail_sums<Config>("gemm", sums_kernel<Config, Params>, params, nullptr);
    }
    GpuPart::finish();
    std::vector<Element> stored(count);
    EXPECT_EQ(cudaMemcpy(stored.data(), rounded.values.device, count * sizeof(Element),
                         cudaMemcpyDeviceToHost),
              cudaSuccess);
    std::size_t different = 0;
    result.download();
    for (std::size_t i = 0; i < count; ++i) {
      different += float(stored[i]) != float(Element(result.host[i]));
    }
    EXPECT_EQ(different, 0u);
    return result.host;
  }

  /// Sums a(batch, row, i) b(batch, column, i) over i < depth, for each element of the result; over
  /// the batches too where the layout contracts them.
  template <class A, class B>
  static std::vector<double> expected(int batches, int depth, A a, B b) {
    const int inner = kLayout == Layout::kTN ? batches : 1;
    std::vector<double> result;
    for (int batch = 0; batch < outer(batches); ++batch) {
      for (int row = 0; row < kRows; ++row) {
        for (int column = 0; column < kColumns; ++column) {
          double sum = 0;
          for (int other = 0; other < inner; ++other) {
            for (int i = 0; i < depth; ++i) {
              sum += a(batch + other, row, i) * b(batch + other, column, i);
            }
          }
          result.push_back(sum);
        }
      }
    }
    return result;
  }

  static void check_depth(int depth) {
    SCOPED_TRACE(depth);
    const Matrix a = make_a(kBatches, depth, 1), b = make_b(kBatches, depth, 2);
    ProductParams<1> params{};
    params.a[0] = map_a(a);
    params.b[0] = map_b(b);
    params.set_tokens(kBatches, depth);
    params.depth[0] = depth;
    const auto exact = expected(
        kBatches, depth, [&](int batch, int row, int i) { return a_at(a, batch, row, i); },
        [&](int batch, int column, int i) { return b_at(b, batch, column, i); });
    EXPECT_LT(relative_rms(multiply(params, outer(kBatches)), exact), 1e-5);
  }
};

using AllConfigs =
    ::testing::Types<Config<Element, Layout::kNT, 64>, Config<Element, Layout::kNT, 128>,
                     Config<Element, Layout::kNT, 192>, Config<Element, Layout::kNT, 256>,
                     Config<Element, Layout::kNN, 64>, Config<Element, Layout::kNN, 128>,
                     Config<Element, Layout::kNN, 192>, Config<Element, Layout::kNN, 256>,
                     Config<Element, Layout::kTN, 64>, Config<Element, Layout::kTN, 128>,
                     Config<Element, Layout::kTN, 192>, Config<Element, Layout::kTN, 256>>;
TYPED_TEST_SUITE(GpuGemm, AllConfigs);

TYPED_TEST(GpuGemm, ShallowerThanTheRing) { TestFixture::check_depth(72); }

TYPED_TEST(GpuGemm, DeeperThanTheRing) { TestFixture::check_depth(1096); }

TYPED_TEST(GpuGemm, InTwoTerms) {
  constexpr int kDepth = 264, kBatches = 2;
  const Matrix one = TestFixture::make_a(kBatches, kDepth, 1);
  const Matrix other = TestFixture::make_a(kBatches, kDepth, 2);
  const Matrix b = TestFixture::make_b(kBatches, kDepth, 3);
  ProductParams<2> params{};
  params.a[0] = TestFixture::map_a(one);
  params.a[1] = TestFixture::map_a(other);
  params.b[0] = params.b[1] = TestFixture::map_b(b);
  params.set_tokens(kBatches, kDepth);
  params.depth[0] = params.depth[1] = kDepth;
  const auto exact = TestFixture::expected(
      kBatches, kDepth,
      [&](int batch, int row, int i) {
        return TestFixture::a_at(one, batch, row, i) + TestFixture::a_at(other, batch, row, i);
      },
      [&](int batch, int column, int i) { return TestFixture::b_at(b, batch, column, i); });
  EXPECT_LT(relative_rms(TestFixture::multiply(params, TestFixture::outer(kBatches)), exact), 1e-5);
}

template <class Config>
class GpuGemmTail : public GpuGemm<Config> {};
using TailConfigs =
    ::testing::Types<Config<Element, Layout::kNN, 64>, Config<Element, Layout::kNN, 128>,
                     Config<Element, Layout::kNN, 192>, Config<Element, Layout::kNN, 256>>;
TYPED_TEST_SUITE(GpuGemmTail, TailConfigs);

TYPED_TEST(GpuGemmTail, IsTheSumOfPartsOfAllTerms) {
  constexpr int kDepth = 200, kShort = 40;  // 4 steps, 1 step
  const Matrix a = TestFixture::make_a(1, kDepth, 1), other_a = TestFixture::make_a(1, kShort, 2);
  const Matrix b = TestFixture::make_b(1, kDepth, 3), other_b = TestFixture::make_b(1, kShort, 4);
  auto exact = TestFixture::expected(
      1, kDepth, [&](int, int row, int i) { return a.at(0, row, i); },
      [&](int, int column, int i) { return TestFixture::b_at(b, 0, column, i); });
  const auto added = TestFixture::expected(
      1, kShort, [&](int, int row, int i) { return other_a.at(0, row, i); },
      [&](int, int column, int i) { return TestFixture::b_at(other_b, 0, column, i); });
  for (std::size_t i = 0; i < exact.size(); ++i) exact[i] += added[i];
  for (const int tiles : {1, 3}) {
    for (const int parts : {2, 3, 5}) {
      SCOPED_TRACE(testing::Message() << tiles << " tiles in " << parts);
      TailParams<2> params{};
      params.tiles = tiles;
      params.parts = parts;
      params.a[0] = TestFixture::map_a(a);
      params.a[1] = TestFixture::map_a(other_a);
      params.b[0] = TestFixture::map_b(b);
      params.b[1] = TestFixture::map_b(other_b);
      params.B = 1;
      params.depth[0] = kDepth;
      params.depth[1] = kShort;
      EXPECT_LT(relative_rms(TestFixture::multiply(params, 1), exact), 1e-5);
    }
  }
}

TYPED_TEST(GpuGemmTail, CtasThatBeginEarlyTakeTheirTilesAmongThemselves) {
  constexpr int kDepth = 72;
  const Matrix a = TestFixture::make_a(1, kDepth, 1), b = TestFixture::make_b(1, kDepth, 2);
  const auto exact = TestFixture::expected(
      1, kDepth, [&](int, int row, int i) { return a.at(0, row, i); },
      [&](int, int column, int i) { return TestFixture::b_at(b, 0, column, i); });
  for (const int ctas : {1, 2, kCtas}) {
    for (const int tiles_of_each : {0, 1, 3, 40}) {  // 40: more than there are
      SCOPED_TRACE(testing::Message() << ctas << " CTAs, " << tiles_of_each << " tiles");
      BesideParams params{};
      params.a[0] = TestFixture::map_a(a);
      params.b[0] = TestFixture::map_b(b);
      params.B = 1;
      params.depth[0] = kDepth;
      params.beside = {true, ctas, ctas * tiles_of_each};
      EXPECT_LT(relative_rms(TestFixture::multiply(params, 1), exact), 1e-5);
    }
  }
}

template <class Config>
class GpuGemmAddend : public GpuGemm<Config> {};
using AddendConfigs =
    ::testing::Types<Config<Element, Layout::kNT, 64>, Config<Element, Layout::kNT, 128>,
                     Config<Element, Layout::kNT, 192>, Config<Element, Layout::kNT, 256>,
                     Config<Element, Layout::kNN, 128>, Config<Element, Layout::kNN, 256>>;
TYPED_TEST_SUITE(GpuGemmAddend, AddendConfigs);

TYPED_TEST(GpuGemmAddend, IsAddedToProductsOfAnyDepth) {
  constexpr int kBatches = 2, kTerms = 2, kRows = TestFixture::kRows;
  constexpr int kColumns = TestFixture::kColumns;
  const Matrix addend(kBatches, kRows, kColumns, 4);
  for (const int depth : {8, 72, 136, 200, 264, 1096}) {
    SCOPED_TRACE(depth);
    const Matrix a = TestFixture::make_a(kBatches, depth, 1);
    const Matrix b = TestFixture::make_b(kBatches, depth, 2);
    SumParams<kTerms> params{};
    params.a[0] = params.a[1] = TestFixture::map_a(a);
    params.b[0] = params.b[1] = TestFixture::map_b(b);
    params.B = kBatches;
    params.depth[0] = depth;  // the other term has none
    std::vector<double> exact = TestFixture::expected(
        kBatches, depth,
        [&](int batch, int row, int i) { return TestFixture::a_at(a, batch, row, i); },
        [&](int batch, int column, int i) { return TestFixture::b_at(b, batch, column, i); });
    EXPECT_LT(relative_rms(TestFixture::multiply(params, kBatches), exact), 1e-5);
    params.addend = {addend.map(64), true};
    for (std::size_t i = 0; i < exact.size(); ++i) exact[i] += float(addend.values.host[i]);
    EXPECT_LT(relative_rms(TestFixture::multiply(params, kBatches), exact), 1e-5);
  }
}

struct GatedParams : SumParams<1> {
  static constexpr bool kWholeRows = true;
  CUtensorMap gate;
};

template <class Config>
class GpuGemmGated : public GpuGemm<Config> {};
using GatedConfigs = ::testing::Types<Config<Element, Layout::kNT, 256, true>>;
TYPED_TEST_SUITE(GpuGemmGated, GatedConfigs);

/// A row has two tiles: of the three CTAs that may run, two do.
TYPED_TEST(GpuGemmGated, MultipliesRoundedRowsOfAnyDepth) {
  constexpr int kBatches = TestFixture::kBatches;
  const Matrix addend(kBatches, TestFixture::kRows, TestFixture::kColumns, 4);
  for (const int depth : {8, 72, 136, 200, 264, 1096}) {
    SCOPED_TRACE(depth);
    const Matrix a = TestFixture::make_a(kBatches, depth, 1);
    const Matrix gate = TestFixture::make_a(kBatches, depth, 3);
    const Matrix b = TestFixture::make_b(kBatches, depth, 2);
    GatedParams params{};
    params.a[0] = TestFixture::map_a(a);
    params.gate = TestFixture::map_a(gate);
    params.b[0] = TestFixture::map_b(b);
    params.B = kBatches;
    params.depth[0] = depth;
    std::vector<double> exact = TestFixture::expected(
        kBatches, depth,
        [&](int batch, int row, int i) {
          return float(Element(float(a.at(batch, row, i)) * float(gate.at(batch, row, i))));
        },
        [&](int batch, int column, int i) { return TestFixture::b_at(b, batch, column, i); });
    EXPECT_LT(relative_rms(TestFixture::multiply(params, kBatches), exact), 1e-5);
    params.addend = {addend.map(64), true};
    for (std::size_t i = 0; i < exact.size(); ++i) exact[i] += float(addend.values.host[i]);
    EXPECT_LT(relative_rms(TestFixture::multiply(params, kBatches), exact), 1e-5);
  }
}

template <class Config>
class GpuGemmTokens : public GpuGemm<Config> {};
using TokenConfigs =
    ::testing::Types<Config<Element, Layout::kTN, 64>, Config<Element, Layout::kTN, 128>,
                     Config<Element, Layout::kTN, 192>, Config<Element, Layout::kTN, 256>>;
TYPED_TEST_SUITE(GpuGemmTokens, TokenConfigs);

TYPED_TEST(GpuGemmTokens, OfAllBatchesAreContractedInPartsToo) {
  using Config = TypeParam;
  constexpr int kTokens = 150, kBatches = 2;  // 6 steps
  const Matrix a = TestFixture::make_a(kBatches, kTokens, 1);
  const Matrix b = TestFixture::make_b(kBatches, kTokens, 2);
  const auto exact = TestFixture::expected(
      kBatches, kTokens,
      [&](int batch, int row, int i) { return TestFixture::a_at(a, batch, row, i); },
      [&](int batch, int column, int i) { return TestFixture::b_at(b, batch, column, i); });
  constexpr int kTiles = (TestFixture::kRows + kTileRows - 1) / kTileRows *
                         ((TestFixture::kColumns + Config::kColumns - 1) / Config::kColumns);
  for (const int tiles : {0, 1, kTiles}) {
    for (const int parts : {3, 4, 7}) {  // of 4, the last one has no steps
      SCOPED_TRACE(testing::Message() << tiles << " tiles in " << parts);
      TailParams<1> params{};
      params.tiles = tiles;
      params.parts = parts;
      params.a[0] = TestFixture::map_a(a);
      params.b[0] = TestFixture::map_b(b);
      params.set_tokens(kBatches, kTokens);
      EXPECT_LT(relative_rms(TestFixture::multiply(params, 1), exact), 1e-5);
    }
  }
}

TYPED_TEST(GpuGemmTokens, OutsideOfEverySequenceAreLeftOut) {
  constexpr int kTokens = 300, kBegin = 20, kEnd = 190;
  Matrix a = TestFixture::make_a(1, kTokens, 1);
  const Matrix b = TestFixture::make_b(1, kTokens, 2);
  for (int token = 0; token < kTokens; ++token) {
    if (token >= kBegin && token < kEnd) continue;
    for (int row = 0; row < a.columns; ++row) {
      a.values.host[std::size_t{1} * token * a.columns + row] =
          Element(std::numeric_limits<float>::quiet_NaN());
    }
  }
  ASSERT_EQ(
      cudaMemcpy(a.values.device, a.values.host.data(), a.values.bytes(), cudaMemcpyHostToDevice),
      cudaSuccess);
  DeviceArray<std::int32_t> cu_seqlens({kBegin, 100, kEnd});
  ProductParams<1> params{};
  params.a[0] = TestFixture::map_a(a);
  params.b[0] = TestFixture::map_b(b);
  params.set_tokens(1, kTokens);
  params.cu_seqlens = cu_seqlens.device;
  params.N = 2;
  const auto exact = TestFixture::expected(
      1, kEnd - kBegin, [&](int, int row, int i) { return a.at(0, kBegin + i, row); },
      [&](int, int column, int i) { return b.at(0, kBegin + i, column); });
  EXPECT_LT(relative_rms(TestFixture::multiply(params, 1), exact), 1e-5);
}

// What gemm::write stores, which a tile that is no whole panels needs, and a depth in parts.
struct TargetParams : Operands<1, 1> {
  Target out;
  Addend addend{};
};

template <class Config>
__global__ __launch_bounds__(Config::kThreads,
                             1) void target_kernel(const __grid_constant__ TargetParams params) {
  extern __shared__ __align__(1024) char shared_memory[];
  const auto epilogue = [&](const Fragment<Config::kColumns>& fragment, PanelStore<Config>& store) {
    write(params.out, params.rows, params.columns[0], params.columns[0], fragment, store);
  };
  run_any<Config>(params, shared_memory, epilogue);
}

template <class Config>
class GpuGemmTarget : public GpuGemm<Config> {};
using TargetConfigs =
    ::testing::Types<Config<Element, Layout::kNT, 128>, Config<Element, Layout::kNT, 160>,
                     Config<Element, Layout::kNT, 64, false, kSplitParts>>;
TYPED_TEST_SUITE(GpuGemmTarget, TargetConfigs);

TYPED_TEST(GpuGemmTarget, HoldsTheRoundedSum) {
  using Config = TypeParam;
  constexpr int kRows = TestFixture::kRows, kColumns = TestFixture::kColumns;
  const Matrix addend(1, kRows, kColumns, 4);
  for (const int depth : {8, 72, 136, 264, 1096}) {
    SCOPED_TRACE(depth);
    const Matrix a = TestFixture::make_a(1, depth, 1), b = TestFixture::make_b(1, depth, 2);
    std::vector<double> exact = TestFixture::expected(
        1, depth, [&](int, int row, int i) { return a.at(0, row, i); },
        [&](int, int column, int i) { return b.at(0, column, i); });
    for (std::size_t i = 0; i < exact.size(); ++i) exact[i] += float(addend.values.host[i]);
    for (const bool by_tma : {true, false}) {
      Matrix out(1, kRows, kColumns, 9);
      TargetParams params{};
      params.a[0] = TestFixture::map_a(a);
      params.b[0] = TestFixture::map_b(b);
      params.set_tokens(1, kRows);
      params.depth[0] = depth;
      params.rows = kRows;
      params.set_columns(0, kColumns, Config::kColumns);
      params.addend = {addend.map(64), true};
      params.out = {out.map(64), by_tma, false, {out.values.device, kColumns}};
      launch_any<Config>("gemm", target_kernel<Config>, params, kCtas, nullptr);
      TestFixture::finish();
      std::vector<float> got;
      for (const Element& value : out.values.download()) got.push_back(float(value));
      EXPECT_LT(relative_rms(got, exact), 2.5e-3);
    }
  }
}

// A pair of products: half of a tile's columns are of the one, half of the other.
}  // namespace
}  // namespace tandem::cuda::gemm
