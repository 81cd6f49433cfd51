#include "cuda/scan/channels.cuh"

#include <limits>

#include "tests/parts/gpu_test.h"

namespace tandem::cuda::scan {
namespace {

constexpr int kThreads = 64;

struct Row {
  int channels;  // of all threads together, from the first thread on; behind them there are none
  int offset;    // of the first one, in elements
};

/// to = 2 from, through pieces in shared memory; `seen` gets what each thread unpacked.
template <bool kAligned, int kCount, class Stored, class Piece>
__global__ void double_channels(const Stored* from, Stored* to, float* seen, Row row) {
  __shared__ Piece pieces[kPiecesOf<Stored, Piece, kCount>][kThreads];
  const int channel = threadIdx.x * kCount;
  const int valid = row.channels - channel;
  copy_channels<kAligned, kThreads, kCount>(&pieces[0][threadIdx.x], from + row.offset + channel,
                                            valid);
  cutlass::arch::cp_async_fence();
  cutlass::arch::cp_async_wait<0>();
  float values[kCount];
  unpack_channels<kThreads, Stored>(&pieces[0][threadIdx.x], values);
  for (int j = 0; j < kCount; ++j) seen[channel + j] = values[j];
  for (float& value : values) value *= 2;
  store_channels<kAligned, Piece>(to + row.offset + channel, values, valid);
}

/// Stores four values by pieces, and behind them one by one.
__global__ void round_channels(const float* from, __nv_bfloat16* to) {
  float values[4];
  load_state(from, values, 4);
  store_channels<true, uint2>(to, values, 4);
  store_channels<false, uint2>(to + 4, values, 4);
}

template <int kCount>
__global__ void judge(const float* values, char* finite) {
  float own[kCount];
  for (int j = 0; j < kCount; ++j) own[j] = values[threadIdx.x * kCount + j];
  finite[threadIdx.x] = are_finite(own);
}

template <int kCount>
__global__ void move_state(const float* from, float* to, int channels) {
  float state[kCount];
  const int channel = threadIdx.x * kCount;
  load_state(from == nullptr ? nullptr : from + channel, state, channels - channel);
  for (float& value : state) value += 1;
  store_state(to + channel, state, channels - channel);
}

class GpuChannels : public GpuPart {
 protected:
  template <bool kAligned, int kCount, class Stored, class Piece>
  static void check(Row row) {
    constexpr int kAll = kThreads * kCount;
    DeviceArray<Stored> from(random_elements<Stored>(kAll + 8, 6));
    DeviceArray<Stored> to(std::vector<Stored>(kAll + 8, Stored(-3.0f)));
    DeviceArray<float> seen(std::vector<float>(kAll, -5.0f));
    double_channels<kAligned, kCount, Stored, Piece>
        <<<1, kThreads>>>(from.device, to.device, seen.device, row);
    finish();
    to.download();
    seen.download();
    for (int i = 0; i < kAll + 8; ++i) {
      const bool exists = i >= row.offset && i < row.offset + row.channels;
      const float value = static_cast<float>(from.host[i]);
      ASSERT_EQ(static_cast<float>(to.host[i]), exists ? 2 * value : -3.0f) << i;
      const int channel = i - row.offset;
      if (channel < 0 || channel >= kAll) continue;
      ASSERT_EQ(seen.host[channel], exists ? value : 0.0f) << i;
    }
  }

  /// A piece at a time: each thread has all of its channels or none.
  template <int kCount, class Stored, class Piece>
  static void check_aligned() {
    for (const int threads : {0, 1, 37, kThreads}) {
      SCOPED_TRACE(threads);
      check<true, kCount, Stored, Piece>({threads * kCount, 0});
    }
  }

  template <int kCount, class Stored, class Piece>
  static void check_unaligned() {
    for (const int channels : {0, 1, 37 * kCount, 37 * kCount + kCount / 2, kThreads * kCount}) {
      SCOPED_TRACE(channels);
      check<false, kCount, Stored, Piece>({channels, 3});
    }
  }
};

TEST_F(GpuChannels, PiecesOfSixteenBytes) {
  check_aligned<8, __nv_bfloat16, uint4>();
  check_aligned<8, __half, uint4>();
  check_aligned<8, float, uint4>();
  check_aligned<4, float, uint4>();
}

TEST_F(GpuChannels, PiecesOfEightAndFourBytes) {
  check_aligned<4, __nv_bfloat16, uint2>();
  check_aligned<4, float, uint2>();
  check_aligned<2, __half, unsigned>();
  check_aligned<2, float, unsigned>();
}

TEST_F(GpuChannels, SingleElementsAnywhere) {
  check_unaligned<8, __nv_bfloat16, uint4>();
  check_unaligned<4, __half, uint2>();
  check_unaligned<2, __nv_bfloat16, unsigned>();
  check_unaligned<4, float, uint2>();
  check_unaligned<8, float, uint4>();
}

TEST_F(GpuChannels, StoresRoundToNearestEven) {
  // Half way between neighbours of bf16, 1/128 apart: to the even ones.
  const std::vector<float> values = {1 + 1.0f / 256, 1 + 3.0f / 256, -1 - 1.0f / 256,
                                     1 + 1.1f / 256};
  const std::vector<float> expected = {1, 1 + 2.0f / 128, -1, 1 + 1.0f / 128};
  DeviceArray<float> from(values);
  DeviceArray<__nv_bfloat16> to(2 * values.size());
  round_channels<<<1, 1>>>(from.device, to.device);
  finish();
  to.download();
  for (std::size_t i = 0; i < to.host.size(); ++i) {
    EXPECT_EQ(static_cast<float>(to.host[i]), expected[i % 4]) << i;
  }
}

TEST_F(GpuChannels, OneValueThatIsNotFiniteIsFound) {
  constexpr int kCount = 4;
  constexpr float kInf = std::numeric_limits<float>::infinity();
  constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
  std::vector<float> values(32 * kCount, std::numeric_limits<float>::max());
  std::vector<bool> expected(32, true);
  for (int thread = 0; thread < 24; ++thread) {
    if (thread % 2 == 0) continue;
    values[thread * kCount + thread / 2 % kCount] = thread < 8 ? kInf : thread < 16 ? -kInf : kNan;
    expected[thread] = false;
  }
  DeviceArray<float> in(values);
  DeviceArray<char> out(32);
  judge<kCount><<<1, 32>>>(in.device, out.device);
  finish();
  out.download();
  for (int thread = 0; thread < 32; ++thread) {
    EXPECT_EQ(out.host[thread] != 0, expected[thread]) << thread;
  }
}

TEST_F(GpuChannels, StatesThatExistMoveAndNullIsZero) {
  constexpr int kCount = 4, kAll = 32 * kCount;
  DeviceArray<float> from(random_elements<float>(kAll, 7));
  for (const int channels : {0, 3, 50, kAll}) {
    for (const bool given : {true, false}) {
      DeviceArray<float> to(std::vector<float>(kAll, -3.0f));
      move_state<kCount><<<1, 32>>>(given ? from.device : nullptr, to.device, channels);
      finish();
      to.download();
      for (int i = 0; i < kAll; ++i) {
        const float expected = i >= channels ? -3.0f : given ? from.host[i] + 1 : 1.0f;
        ASSERT_EQ(to.host[i], expected) << i << " of " << channels;
      }
    }
  }
}

}  // namespace
}  // namespace tandem::cuda::scan
