// gla_state_forward beyond the cases of cases/gla.json (test_gla runs those): what a reset forgets,
// where a NaN goes, totals, bits that do not depend on threads.
#include <gtest/gtest.h>
#include <omp.h>

#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "cli/cases/random.h"
#include "tandem/ops/gla.h"

namespace tandem::tools {
namespace {

constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();
constexpr float kInf = std::numeric_limits<float>::infinity();

/// One fp32 sequence on the CPU.
struct Sequence {
  Sequence(std::int64_t T, std::int64_t H, std::int64_t K, std::int64_t V)
      : T(T), H(H), K(K), V(V), k(T * H * K), v(T * H * V), log_decay(T * H, -0.01f) {
    const RandomStream random(11, "state");
    for (std::size_t i = 0; i < k.size(); ++i) k[i] = random.normal(i);
    for (std::size_t i = 0; i < v.size(); ++i) v[i] = random.normal(k.size() + i);
  }

  struct Result {
    std::vector<float> state, total;
    bool operator==(const Result&) const = default;
  };

  /// Results of tokens [begin, end).
  Result run(std::int64_t begin, std::int64_t end) {
    Result result{std::vector<float>(H * K * V, kNaN), std::vector<float>(H, kNaN)};
    const std::int64_t length = end - begin;
    const auto tensor = [](float* data, const Dims& shape) {
      return TensorView::contiguous(data, DType::kFloat32, shape);
    };
    gla_state_forward({.k = tensor(k.data() + begin * H * K, {1, length, H, K}),
                       .v = tensor(v.data() + begin * H * V, {1, length, H, V}),
                       .log_decay = tensor(log_decay.data() + begin * H, {1, length, H}),
                       .state = tensor(result.state.data(), {1, H, K, V}),
                       .total_log_decay = tensor(result.total.data(), {1, H})});
    return result;
  }

  std::int64_t T, H, K, V;
  std::vector<float> k, v, log_decay;
};

TEST(GlaState, TheBitsDoNotDependOnTheThreads) {
  const int threads = omp_get_max_threads();
  for (const std::int64_t T : {100, 700, 5000}) {
    for (const std::int64_t H : {1, 3}) {
      Sequence sequence(T, H, 32, 24);
      omp_set_num_threads(1);
      const Sequence::Result expected = sequence.run(0, T);
      for (const int count : {2, 3, 7}) {
        omp_set_num_threads(count);
        EXPECT_EQ(sequence.run(0, T), expected) << T << ' ' << H << ' ' << count;
      }
    }
  }
  omp_set_num_threads(threads);
}

/// The token that resets and those after it are all that is left, to the bit, whatever was before.
TEST(GlaState, AResetForgetsNanAndInfinity) {
  for (const std::int64_t reset : {1, 63, 64, 500, 512, 1199}) {
    Sequence sequence(1200, 2, 16, 16);
    for (std::int64_t h = 0; h < 2; ++h) sequence.log_decay[reset * 2 + h] = -kInf;
    const Sequence::Result expected = sequence.run(0, 1200);
    sequence.k[(reset - 1) * 2 * 16] = kNaN;  // the token before, head 0
    sequence.v[0] = kInf;                     // the first token, head 0
    const Sequence::Result got = sequence.run(0, 1200);
    EXPECT_EQ(got, expected) << reset;
    EXPECT_EQ(got.total, (std::vector<float>{-kInf, -kInf}));
    for (const float value : got.state) ASSERT_TRUE(std::isfinite(value)) << reset;
  }
}

TEST(GlaState, NanStaysInItsHead) {
  Sequence sequence(1200, 3, 16, 16);
  const Sequence::Result clean = sequence.run(0, 1200);
  sequence.k[(1000 * 3 + 1) * 16] = kNaN;
  sequence.log_decay[700 * 3 + 1] = kNaN;
  const Sequence::Result got = sequence.run(0, 1200);
  const auto head = [](const Sequence::Result& result, std::int64_t h) {
    return std::vector<float>(&result.state[h * 256], &result.state[h * 256] + 256);
  };
  EXPECT_EQ(head(got, 0), head(clean, 0));
  EXPECT_EQ(head(got, 2), head(clean, 2));
  EXPECT_TRUE(std::isnan(head(got, 1)[0]));
  EXPECT_EQ(got.total[0], clean.total[0]);
  EXPECT_TRUE(std::isnan(got.total[1]));
  EXPECT_EQ(got.total[2], clean.total[2]);
}

TEST(GlaState, TotalsAreSumsOfLogDecays) {
  Sequence sequence(1000, 4, 8, 8);
  for (std::int64_t t = 0; t < 1000; ++t) {
    sequence.log_decay[t * 4] = -20.0f;                        // a sum far below exp's range
    sequence.log_decay[t * 4 + 1] = 0.25f;                     // growing
    sequence.log_decay[t * 4 + 2] = t == 999 ? -1e30f : 0.0f;  // forgets, as -inf does
    sequence.log_decay[t * 4 + 3] = t == 0 ? -kInf : -0.5f;    // at the first token too
  }
  EXPECT_EQ(sequence.run(0, 1000).total, (std::vector<float>{-20000.0f, 250.0f, -kInf, -kInf}));
  EXPECT_EQ(sequence.run(1, 999).total, (std::vector<float>{-19960.0f, 249.5f, 0.0f, -499.0f}));
}

TEST(GlaState, NothingIsLeftOfNoTokens) {
  Sequence sequence(0, 2, 4, 4);
  const Sequence::Result got = sequence.run(0, 0);
  EXPECT_EQ(got.state, std::vector<float>(2 * 4 * 4, 0.0f));
  EXPECT_EQ(got.total, (std::vector<float>{0.0f, 0.0f}));
}

}  // namespace
}  // namespace tandem::tools
