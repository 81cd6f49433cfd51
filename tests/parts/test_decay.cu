#include "cuda/parts/decay.cuh"

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>

#include "tests/parts/gpu_test.h"

namespace tandem::cuda {
namespace {

constexpr int kChunk = 64;
constexpr float kInf = std::numeric_limits<float>::infinity();

/// Factors of one chunk and the token behind it: from token j to token i at [i][j], where the walk
/// meets j first, and the three kinds of state factors.
template <bool kReverse>
__global__ void all_factors(const float* log_decay, float scale, float* factors,
                            ChunkDecay<kChunk>* out) {
  __shared__ ChunkDecay<kChunk> decay;
  const int lane = threadIdx.x;
  const LogDecays own{{log_decay[2 * lane], log_decay[2 * lane + 1]}, log_decay[kChunk]};
  compute_chunk_decay<kReverse>(own, scale, decay);
  __syncwarp();
  for (int i = 0; i < kChunk; ++i) {
    for (int j = lane; j < kChunk; j += 32) {
      factors[i * kChunk + j] = fast_exp2(decay.log2_sum[i] - decay.log2_sum[j]);
    }
  }
  if (lane == 0) *out = decay;
}

/// exp(sum of decays (j, i]), in fp64; 0 across a reset.
double expected_factor(const std::vector<float>& log_decay, int j, int i) {
  double sum = 0;
  for (int t = j + 1; t <= i; ++t) sum += log_decay[t];
  return std::exp(sum);
}

class GpuDecay : public GpuPart {
 protected:
  /// `tolerance`: of factors between tokens; those from and to states are never worse than 2e-5.
  static void check(const std::function<float(int)>& log_decay_at, double tolerance) {
    std::vector<float> g(kChunk + 1);
    for (int t = 0; t <= kChunk; ++t) g[t] = log_decay_at(t);
    DeviceArray<float> log_decay(g), factors(kChunk * kChunk);
    DeviceArray<ChunkDecay<kChunk>> chunk(1);
    const float scale = 0.125f;
    const auto near = [&](double got, double expected) {
      ASSERT_NEAR(got, expected, tolerance * expected + 1e-37);
    };
    const auto state_near = [&](double got, double expected) {
      ASSERT_NEAR(got, expected, std::min(tolerance, 2e-5) * expected + 1e-37);
    };
    const int last = kChunk - 1;

    all_factors<false><<<1, 32>>>(log_decay.device, scale, factors.device, chunk.device);
    finish();
    factors.download();
    const ChunkDecay<kChunk> forward = chunk.download()[0];
    for (int i = 0; i < kChunk; ++i) {
      for (int j = 0; j <= i; ++j) near(factors.host[i * kChunk + j], expected_factor(g, j, i));
      state_near(forward.from_state[i], scale * expected_factor(g, -1, i));
      state_near(forward.to_state[i], expected_factor(g, i, last));
    }
    state_near(forward.state_to_state, expected_factor(g, -1, last));

    all_factors<true><<<1, 32>>>(log_decay.device, scale, factors.device, chunk.device);
    finish();
    factors.download();
    const ChunkDecay<kChunk> reverse = chunk.download()[0];
    for (int i = 0; i < kChunk; ++i) {
      for (int j = i; j < kChunk; ++j) near(factors.host[i * kChunk + j], expected_factor(g, i, j));
      state_near(reverse.from_state[i], expected_factor(g, i, kChunk));
      state_near(reverse.to_state[i], scale * expected_factor(g, 0, i));
    }
    state_near(reverse.state_to_state, expected_factor(g, 0, kChunk));
    state_near(reverse.through, expected_factor(g, -1, kChunk));
  }
};

TEST_F(GpuDecay, None) {
  check([](int) { return 0.0f; }, 0);
}

TEST_F(GpuDecay, Mild) {
  check([](int t) { return -0.01f * (1 + t % 7); }, 2e-6);
}

TEST_F(GpuDecay, Strong) {
  check([](int) { return -20.0f; }, 5e-5);  // half of the sum, 923 in base 2, carries 3e-5
}

TEST_F(GpuDecay, StrongAndNoneInTurn) {
  check([](int t) { return t % 2 ? -90.0f : 0.0f; }, 2e-4);
}

TEST_F(GpuDecay, Growing) {
  check([](int t) { return 0.02f * (t % 5); }, 2e-6);
}

TEST_F(GpuDecay, ResetsForgetExactly) {
  const auto limit = [](int resets) { return resets * 1.1e-5; };
  check([](int t) { return t == 0 || t == 17 || t == 18 || t == 63 ? -kInf : -0.1f; }, limit(4));
  check([](int t) { return t % 4 ? -0.1f : -kInf; }, limit(16));
  check([](int t) { return t % 2 ? -0.1f : -kInf; }, limit(32));
  check([](int t) { return t % 3 ? -kInf : -0.1f; }, limit(42));
  check([](int) { return -kInf; }, 0);
}

TEST_F(GpuDecay, DecayBelowFp32IsAReset) {
  check([](int t) { return t == 30 ? -1e30f : -0.1f; }, 1e-4);
}

}  // namespace
}  // namespace tandem::cuda
