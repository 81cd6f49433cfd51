#include "cuda/parts/tma.cuh"

#include <cstring>

#include "cuda/parts/panel.cuh"
#include "cuda/runtime/tensor_map.h"
#include "tests/parts/gpu_test.h"

namespace tandem::cuda {
namespace {

using Word = std::uint16_t;

/// Loads one panel, copies it to `panel_out` and stores it again through another map.
__global__ void load_and_store(const __grid_constant__ CUtensorMap from,
                               const __grid_constant__ CUtensorMap to, TileCoordinate at,
                               uint4* panel_out) {
  __shared__ alignas(1024) char panel[panel_bytes(64)];
  __shared__ Barrier full;
  if (threadIdx.x == 0) {
    full.init(1);
    fence_barriers_initialised();
    full.arrive_and_expect(panel_bytes(64));
    prefetch_tensor_map(from);
    load_panel(from, full, panel, at);
  }
  __syncthreads();
  full.wait(0);
  for (int i = threadIdx.x; i < panel_bytes(64) / 16; i += blockDim.x) {
    panel_out[i] = reinterpret_cast<const uint4*>(panel)[i];
  }
  fence_shared_for_async_proxy();
  __syncthreads();
  if (threadIdx.x == 0) {
    store_panel(to, panel, at);
    wait_stores_read();
  }
}

/// D of the 104 columns of a head.
class GpuTma : public GpuPart, public testing::WithParamInterface<int> {};

TEST_P(GpuTma, LoadsZeroFilledPanelsAndStoresWholeRowsOf16Bytes) {
  constexpr int B = 2, T = 100, H = 3, kColumns = 104;
  constexpr std::size_t kCount = std::size_t{B} * T * H * kColumns;
  const int D = GetParam();
  std::vector<Word> values(kCount);
  for (std::size_t i = 0; i < kCount; ++i) values[i] = static_cast<Word>(i * 40503u >> 3);
  DeviceArray<Word> from(values);
  DeviceArray<Word> to(std::vector<Word>(kCount, 0xBEEF));
  DeviceArray<uint4> panel(panel_bytes(64) / 16);
  const auto plan = [&](Word* data) {
    const StridedTensor tensor{data, std::int64_t{T} * H * kColumns, std::int64_t{H} * kColumns,
                               kColumns};
    return plan_tile("x", tensor, DType::kBFloat16, {B, T, H, D}, 64);
  };
  ASSERT_EQ(plan(from.device).problem, "");
  const TileCoordinate at{64, 2, 64, 1};  // D - 64 of 64 columns and 36 of 64 rows exist
  load_and_store<<<1, 128>>>(encode(plan(from.device)), encode(plan(to.device)), at, panel.device);
  finish();

  panel.download();
  to.download();
  const auto index = [&](int t, int d) {
    return ((std::size_t{1} * T + t) * H + 2) * kColumns + d;
  };
  std::vector<Word> expected(kCount, 0xBEEF);
  for (int row = 0; row < 64; ++row) {
    for (int column = 0; column < 64; ++column) {
      const bool inside = 64 + row < T && 64 + column < D;
      Word got;
      std::memcpy(&got,
                  reinterpret_cast<const char*>(panel.host.data()) + panel_offset(row, column / 8) +
                      column % 8 * 2,
                  2);
      ASSERT_EQ(got, inside ? values[index(64 + row, 64 + column)] : 0) << row << " " << column;
      const bool stored = 64 + row < T && 64 + column < (D + 7) / 8 * 8;
      if (stored) expected[index(64 + row, 64 + column)] = got;
    }
  }
  EXPECT_EQ(to.host, expected);
}
INSTANTIATE_TEST_SUITE_P(Columns, GpuTma, testing::Values(104, 96, 97, 99, 100, 102));

}  // namespace
}  // namespace tandem::cuda
