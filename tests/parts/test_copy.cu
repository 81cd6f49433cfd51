#include <algorithm>

#include "cuda/runtime/copy.h"
#include "tests/parts/gpu_test.h"

namespace tandem::cuda {
namespace {

class GpuCopy : public GpuPart {
 protected:
  /// Copies rows of so many elements from and to places that lie so many behind a multiple of 16
  /// bytes, with gaps between rows, and checks that the gaps are as they were.
  static void check(int dim, int from_offset, int to_offset, int gap) {
    constexpr std::int64_t kB = 2, kT = 5;
    constexpr int kHeads = 3;
    constexpr std::uint16_t kUntouched = 0xFFFF;
    // [B,heads,T,dim] to [B,T,heads,dim]
    const std::int64_t row = dim + gap;
    const StridedTensor heads_first{nullptr, kHeads * kT * row, row, kT * row};
    const StridedTensor times_first{nullptr, kT * kHeads * row, kHeads * row, row};
    // The last row ends with its last element: nothing behind it may be read.
    const auto elements = static_cast<std::size_t>(kB * kT * kHeads * row - gap);
    std::vector<std::uint16_t> values(elements + from_offset);
    for (std::size_t i = 0; i < values.size(); ++i) values[i] = static_cast<std::uint16_t>(i % 999);
    const DeviceArray<std::uint16_t> from(values);
    DeviceArray<std::uint16_t> to(std::vector<std::uint16_t>(elements + to_offset, kUntouched));
    CopyParams params{heads_first, times_first, kB, kT, kHeads, dim};
    params.from.data = from.device + from_offset;
    params.to.data = to.device + to_offset;
    launch_copy("test", params, nullptr);
    finish();

    std::vector<std::uint16_t> expected(elements + to_offset, kUntouched);
    for (std::int64_t b = 0; b < kB; ++b) {
      for (std::int64_t t = 0; t < kT; ++t) {
        for (std::int64_t h = 0; h < kHeads; ++h) {
          const auto begin = values.begin() + from_offset + ((b * kHeads + h) * kT + t) * row;
          std::copy(begin, begin + dim,
                    expected.begin() + to_offset + ((b * kT + t) * kHeads + h) * row);
        }
      }
    }
    EXPECT_EQ(to.download(), expected)
        << "dim " << dim << ", offsets " << from_offset << " and " << to_offset << ", gap " << gap;
  }
};

TEST_F(GpuCopy, RowsOfAnyLengthFromAndToAnyPlace) {
  for (const int dim : {1, 7, 8, 16, 23, 40, 100, 197, 520}) {
    for (const int from : {0, 1, 5}) {
      for (const int to : {0, 3, 6}) {
        for (const int gap : {0, 3}) check(dim, from, to, gap);
      }
    }
  }
}

}  // namespace
}  // namespace tandem::cuda
