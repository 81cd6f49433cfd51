#include "cuda/parts/stored_vector.cuh"

#include "tests/parts/gpu_test.h"

namespace tandem::cuda {
namespace {

/// to = 2 * from, a vector per thread; only the first `count` vectors exist.
template <class Stored, int kCount>
__global__ void double_all(const Stored* from, Stored* to, int count) {
  const bool exists = static_cast<int>(threadIdx.x) < count;
  StoredVector<Stored, kCount> vector;
  vector.load(from + threadIdx.x * kCount, exists);
  float values[kCount];
  vector.unpack(values);
  for (float& value : values) value = 2 * value + (exists ? 0.0f : 1.0f);
  vector.pack(values);
  vector.store(to + threadIdx.x * kCount, exists);
}

class GpuStoredVector : public GpuPart {
 protected:
  template <class Stored, int kCount>
  static void check(int offset) {
    constexpr int kVectors = 29;  // of 32 threads
    DeviceArray<Stored> from(random_elements<Stored>(32 * kCount + 1, 5));
    DeviceArray<Stored> to(std::vector<Stored>(32 * kCount + 1, Stored(-3.0f)));
    double_all<Stored, kCount><<<1, 32>>>(from.device + offset, to.device + offset, kVectors);
    finish();
    to.download();
    for (int i = 0; i < static_cast<int>(to.host.size()); ++i) {
      const bool written = i >= offset && i < offset + kVectors * kCount;
      const float expected = written ? 2 * static_cast<float>(from.host[i]) : -3.0f;
      ASSERT_EQ(static_cast<float>(to.host[i]), expected) << i;
    }
  }
};

TEST_F(GpuStoredVector, SixteenBytes) {
  check<float, 4>(0);
  check<__nv_bfloat16, 8>(0);
}

TEST_F(GpuStoredVector, OneElementAnywhere) {
  check<float, 1>(1);
  check<__nv_bfloat16, 1>(1);
}

}  // namespace
}  // namespace tandem::cuda
