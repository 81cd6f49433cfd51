// Pairs of products by the GEMM main loop and by few rows, at extents that no tile divides, against
// fp64.
#include <cmath>

#include "cuda/gemm/few_rows.cuh"
#include "cuda/gemm/loop.cuh"
#include "tests/parts/gemm_test.h"

namespace tandem::cuda::gemm {
namespace {

constexpr int kCtas = 3;  // so that each computes several tiles

struct PairParams : PairedOperands {
  float* results[2];  // [rows, columns]
};

/// Writes both products of a fragment.
template <int kColumns>
__device__ void write_pair(const PairParams& params, const Fragment<kColumns>& fragment) {
#pragma unroll
  for (int i = 0; i < kColumns / 2; ++i) {
    const int row = fragment.row + fragment_row() + i % 4 / 2 * 8;
    const int in_tile = fragment_column(i / 4) + i % 2;
    const int column = fragment.column + in_tile % (kColumns / 2);
    if (row < params.rows && column < params.columns[0]) {
      params.results[in_tile / (kColumns / 2)][row * params.columns[0] + column] =
          fragment.values[i];
    }
  }
}

template <class Config>
__global__ __launch_bounds__(Config::kThreads,
                             1) void pair_kernel(const __grid_constant__ PairParams params) {
  extern __shared__ __align__(1024) char shared_memory[];
  auto& shared = *reinterpret_cast<Shared<Config>*>(shared_memory);
  run<Config>(params, shared, [&](const Fragment<Config::kColumns>& fragment, PanelStore<Config>&) {
    write_pair(params, fragment);
  });
}

/// Writes both products of rows.
struct WritePairs {
  const PairParams& params;
  int end;  // the tile's last column

  template <class Rows>
  __device__ void finish(const Rows& rows) const {
    rows.each([&](const RowPiece& piece) {
      for (int i = 0; i < 4; ++i) {
        const int column = piece.column + i % 2;
        if (column < end) {
          params.results[i / 2][piece.row * params.columns[0] + column] = piece.values[i];
        }
      }
    });
  }
};

template <class Config>
__global__ __launch_bounds__(Config::kThreads, Config::kCtas) void few_rows_kernel(
    const __grid_constant__ PairParams params) {
  extern __shared__ __align__(1024) char shared_memory[];
  auto& shared = *reinterpret_cast<FewRowsShared<Config>*>(shared_memory);
  run_few_rows<Config>(params, shared, [&](const FewRowsTile& tile) {
    return WritePairs{params, min(tile.column + params.tile_columns[0], params.columns[0])};
  });
}

class GpuPair : public GpuPart {
 protected:
  static constexpr int kColumns = 328, kDepth = 264;

  /// Runs a kernel with two products of `rows` rows, `tile_columns` of each at a time, and checks
  /// both.
  template <class Launch>
  static void check(int rows, int box_rows_of_a, int box_rows_of_b, int tile_columns,
                    Launch launch) {
    const Matrix a(1, rows, kDepth, 1), b0(1, kColumns, kDepth, 2), b1(1, kColumns, kDepth, 3);
    const std::vector<float> unset(std::size_t{1} * rows * kColumns, std::nanf(""));
    DeviceArray<float> first(unset), second(unset);
    PairParams params{};
    params.a[0] = a.map(box_rows_of_a);
    params.b[0] = b0.map(box_rows_of_b);
    params.b[1] = b1.map(box_rows_of_b);
    params.B = 1;
    params.rows = rows;
    params.depth[0] = kDepth;
    params.set_columns(0, kColumns, tile_columns);
    params.results[0] = first.device;
    params.results[1] = second.device;
    launch(params);
    finish();
    for (const auto& [result, b] : {std::pair{&first, &b0}, std::pair{&second, &b1}}) {
      std::vector<double> exact;
      for (int row = 0; row < rows; ++row) {
        for (int column = 0; column < kColumns; ++column) {
          double sum = 0;
          for (int i = 0; i < kDepth; ++i) sum += a.at(0, row, i) * b->at(0, column, i);
          exact.push_back(sum);
        }
      }
      EXPECT_LT(relative_rms(result->download(), exact), 1e-5);
    }
  }
};

TEST_F(GpuPair, TakesHalfATileEach) {
  const auto width = [](auto config) {
    using Config = decltype(config);
    for (const int rows : {400, 424}) {  // with boxes of 32 and of 64 rows
      check(rows, box_rows_a(Layout::kNT, rows), kBoxRows, Config::kColumns / 2,
            [](const PairParams& params) {
              launch<Config>("gemm", pair_kernel<Config>, params, kCtas, nullptr);
            });
    }
  };
  width(Config<Element, Layout::kNT, 128>());
  width(Config<Element, Layout::kNT, 256>());
}

TEST_F(GpuPair, OfFewRowsInAnyNumberOfPartsAndTiles) {
  const auto few = [](auto config, int rows, int row_tiles, int tile_columns) {
    using Few = decltype(config);
    const int of_tile = static_cast<int>(ceil_div(rows, row_tiles));
    ASSERT_LE(of_tile, Few::kRows);
    for (int parts = 1; parts <= kMostFewRowsParts; ++parts) {
      check(rows, of_tile, tile_columns, tile_columns, [&](const PairParams& params) {
        launch_few_rows<Few>("gemm", few_rows_kernel<Few>, params, {row_tiles, of_tile, parts},
                             nullptr);
      });
    }
  };
  few(FewRowsConfig<Element, 16>(), 13, 1, 64);
  few(FewRowsConfig<Element, 64>(), 130, 3, 64);
  few(FewRowsConfig<Element, 64>(), 40, 1, 44);
  few(FewRowsConfig<Element, 128>(), 100, 1, 64);
  few(FewRowsConfig<Element, 128>(), 100, 2, 64);  // whose 50 rows need the narrowest wgmma
  few(FewRowsConfig<Element, 224>(), 401, 2, 64);
  few(FewRowsConfig<Element, 224>(), 130, 1, 64);
  few(FewRowsConfig<Element, 160, 192>(), 130, 1, 96);
  few(FewRowsConfig<Element, 200, 192>(), 390, 2, 96);
  few(FewRowsConfig<Element, 208, kFewRowsTwoTiles>(), 401, 2, 128);
  few(FewRowsConfig<Element, 208, kFewRowsTwoTiles>(), 130, 1, 128);
}

}  // namespace
}  // namespace tandem::cuda::gemm
