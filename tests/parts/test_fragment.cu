#include "cuda/parts/fragment.cuh"

#include <cstring>

#include "tests/parts/gpu_test.h"

namespace tandem::cuda {
namespace {

template <class Element>
__global__ void repack(const std::uint32_t* in, std::uint32_t* out, int count) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= count) return;
  const float2 pair = unpack_pair<Element>(in[i]);
  out[i] = pack_pair<Element>(pair.x, pair.y);
}

/// Every thread's accumulator element is its [row, column] as row * 64 + column.
__device__ void fill_with_positions(float (&acc)[32]) {
  for (int i = 0; i < 32; ++i) {
    const int row = fragment_row() + i / 2 % 2 * 8;
    acc[i] = row * 64 + fragment_column(i / 4) + i % 2;
  }
}

/// Stores the accumulator as rows and as columns, and reads the latter back as an A operand.
__global__ void round_trip(char* rows_out, char* columns_out, int* mismatches) {
  __shared__ alignas(1024) char rows[panel_bytes(64)];
  __shared__ alignas(1024) char columns[panel_bytes(64)];
  float acc[32];
  fill_with_positions(acc);
  std::uint32_t packed[4][4];
#pragma unroll
  for (int step = 0; step < 4; ++step) {
    accumulator_to_operand<__half>(acc, step, packed[step]);
    store_rows(rows, step, packed[step]);
    store_columns(columns, step, packed[step]);
  }
  __syncthreads();
#pragma unroll
  for (int step = 0; step < 4; ++step) {
    std::uint32_t loaded[4];
    load_columns(columns, step, loaded);
    for (int i = 0; i < 4; ++i) {
      if (loaded[i] != packed[step][i]) atomicAdd(mismatches, 1);
    }
  }
  for (int i = threadIdx.x; i < panel_bytes(64); i += blockDim.x) {
    rows_out[i] = rows[i];
    columns_out[i] = columns[i];
  }
}

using GpuFragment = GpuPart;

TEST_F(GpuFragment, PairsSurviveUnpackingAndPacking) {
  std::vector<std::uint32_t> patterns;
  for (std::uint32_t i = 0; i < 0x10000; ++i) {
    const bool fp16_nan = (i & 0x7C00) == 0x7C00 && (i & 0x3FF);
    const bool bf16_nan = (i & 0x7F80) == 0x7F80 && (i & 0x7F);
    if (!fp16_nan && !bf16_nan) patterns.push_back(i | (i ^ 0x8000) << 16);
  }
  DeviceArray<std::uint32_t> in(patterns), out(patterns.size());
  const int count = static_cast<int>(patterns.size());
  repack<__nv_bfloat16><<<(count + 255) / 256, 256>>>(in.device, out.device, count);
  finish();
  EXPECT_EQ(out.download(), patterns);
  repack<__half><<<(count + 255) / 256, 256>>>(in.device, out.device, count);
  finish();
  EXPECT_EQ(out.download(), patterns);
}

TEST_F(GpuFragment, AccumulatorsReachPanelsAndOperands) {
  DeviceArray<char> rows(panel_bytes(64)), columns(panel_bytes(64));
  DeviceArray<int> mismatches(1);
  // Positions up to 2048 are exact in fp16; the upper half of the tile is checked through its
  // rounding.
  round_trip<<<1, 128>>>(rows.device, columns.device, mismatches.device);
  finish();
  EXPECT_EQ(mismatches.download()[0], 0);
  rows.download();
  columns.download();
  const auto value = [](const std::vector<char>& panel, int row, int column) {
    __half half;
    std::memcpy(&half, panel.data() + panel_offset(row, column / 8) + column % 8 * 2, 2);
    return static_cast<float>(half);
  };
  for (int row = 0; row < 64; ++row) {
    for (int column = 0; column < 64; ++column) {
      const float expected = static_cast<float>(__half(static_cast<float>(row * 64 + column)));
      ASSERT_EQ(value(rows.host, row, column), expected);
      ASSERT_EQ(value(columns.host, column, row), expected);
    }
  }
}

}  // namespace
}  // namespace tandem::cuda
