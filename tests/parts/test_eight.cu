#include "cuda/parts/eight.cuh"

#include "tests/parts/gpu_test.h"

namespace tandem::cuda {
namespace {

using Element = __nv_bfloat16;
constexpr int kLength = 64;

/// Copies `count` elements from one place of a row to another, once as fp32 and once rounded.
__global__ void copy(const void* from, bool fp32, int at, int count, float* as_fp32,
                     Element* rounded) {
  float values[8];
  load_eight<Element>(from, fp32, at, count, values);
  for (int i = 0; i < 8; ++i) as_fp32[i] = values[i];
  store_eight(rounded + at, count, values);
}

class GpuEight : public GpuPart {
 protected:
  template <class Stored>
  static void check() {
    const auto row = random_elements<Stored>(kLength, 1);
    DeviceArray<Stored> from(row);
    for (const int at : {0, 8, 3}) {  // the last one not aligned
      for (const int count : {-1, 0, 1, 7, 8, 20}) {
        DeviceArray<float> as_fp32(std::vector<float>(8, -1.0f));
        DeviceArray<Element> rounded(std::vector<Element>(kLength, Element(-1.0f)));
        copy<<<1, 1>>>(from.device, sizeof(Stored) == 4, at, count, as_fp32.device, rounded.device);
        finish();
        as_fp32.download();
        rounded.download();
        for (int i = 0; i < 8; ++i) {
          EXPECT_EQ(as_fp32.host[i], i < count ? float(row[at + i]) : 0.0f) << at << " " << count;
        }
        for (int i = 0; i < kLength; ++i) {
          const bool stored = i >= at && i < at + 8 && i < at + count;
          EXPECT_EQ(float(rounded.host[i]), stored ? float(Element(float(row[i]))) : -1.0f)
              << at << " " << count << " " << i;
        }
      }
    }
  }
};

TEST_F(GpuEight, OfSixteenBits) { check<Element>(); }

TEST_F(GpuEight, OfFp32) { check<float>(); }

}  // namespace
}  // namespace tandem::cuda
