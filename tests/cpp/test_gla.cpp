// gla_forward where its cases do not reach (test_every_case.cpp).
#include <gtest/gtest.h>
#include <omp.h>

#include <cmath>
#include <limits>
#include <vector>

#include "cli/cases/random.h"
#include "tandem/ops/gla.h"

namespace tandem::tools {
namespace {

/// Final states and outputs of a call without tokens.
TEST(Gla, NoTokensLeaveTheStateAsItWas) {
  std::vector<float> initial(2 * 3 * 4 * 5, 1.5f), final(initial.size(), -1);
  GlaForwardArgs args;
  args.q = args.k = TensorView::contiguous(nullptr, DType::kFloat32, {2, 0, 3, 4});
  args.v = args.o = TensorView::contiguous(nullptr, DType::kFloat32, {2, 0, 3, 5});
  args.initial_state = TensorView::contiguous(initial.data(), DType::kFloat32, {2, 3, 4, 5});
  args.final_state = TensorView::contiguous(final.data(), DType::kFloat32, {2, 3, 4, 5});
  gla_forward(args);
  EXPECT_EQ(final, initial);
  args.initial_state.reset();
  gla_forward(args);
  EXPECT_EQ(final, std::vector<float>(final.size(), 0));
}

TEST(Gla, NoBatchesIsNoError) {
  GlaForwardArgs args;
  args.q = args.k = TensorView::contiguous(nullptr, DType::kBFloat16, {0, 5, 3, 8});
  args.v = args.o = TensorView::contiguous(nullptr, DType::kBFloat16, {0, 5, 3, 8});
  EXPECT_NO_THROW(gla_forward(args));
}

/// A sequence that ends in the middle of another call continues from its state.
TEST(Gla, StateCarriesASequenceOver) {
  constexpr std::int64_t T = 150, kSplit = 70, K = 16, V = 24;
  const RandomStream random(3, "carry");
  std::vector<float> q(T * K), k(T * K), v(T * V), g(T), whole(T * V), parts(T * V);
  for (std::size_t i = 0; i < q.size(); ++i) q[i] = random.normal(i);
  for (std::size_t i = 0; i < k.size(); ++i) k[i] = random.normal(10000 + i);
  for (std::size_t i = 0; i < v.size(); ++i) v[i] = random.normal(20000 + i);
  for (std::size_t i = 0; i < g.size(); ++i) g[i] = -random.uniform(30000 + i) / 10;
  std::vector<float> whole_state(K * V), state(K * V, 0);
  const auto run = [&](std::int64_t begin, std::int64_t end, std::vector<float>& o, float* final) {
    const std::int64_t length = end - begin;
    GlaForwardArgs args;
    args.q = TensorView::contiguous(&q[begin * K], DType::kFloat32, {1, length, 1, K});
    args.k = TensorView::contiguous(&k[begin * K], DType::kFloat32, {1, length, 1, K});
    args.v = TensorView::contiguous(&v[begin * V], DType::kFloat32, {1, length, 1, V});
    args.o = TensorView::contiguous(&o[begin * V], DType::kFloat32, {1, length, 1, V});
    args.log_decay = TensorView::contiguous(&g[begin], DType::kFloat32, {1, length, 1});
    args.final_state = TensorView::contiguous(final, DType::kFloat32, {1, 1, K, V});
    if (&o == &parts) args.initial_state = args.final_state;
    gla_forward(args);
  };
  run(0, T, whole, whole_state.data());
  run(0, kSplit, parts, state.data());
  run(kSplit, T, parts, state.data());
  for (std::size_t i = 0; i < whole.size(); ++i) ASSERT_NEAR(whole[i], parts[i], 2e-4) << i;
  for (std::size_t i = 0; i < state.size(); ++i) ASSERT_NEAR(whole_state[i], state[i], 2e-4) << i;
}

/// Two batch rows of two heads; random inputs, and a reset at token 200 of the first head.
struct SavingCall {
  static constexpr std::int64_t kB = 2, kT = 300, kH = 2, kK = 40, kV = 36, kSaved = 3;

  SavingCall() {
    const auto fill = [](std::vector<float>& x, std::int64_t count, const char* name) {
      const RandomStream random(5, name);
      x.resize(count);
      for (std::int64_t i = 0; i < count; ++i) x[i] = random.normal(i);
    };
    fill(q, kB * kT * kH * kK, "q");
    fill(k, kB * kT * kH * kK, "k");
    fill(v, kB * kT * kH * kV, "v");
    fill(g, kB * kT * kH, "g");
    fill(initial, kB * kH * kK * kV, "initial");
    for (float& x : g) x = -std::fabs(x) / 20;
    g[200 * kH] = -std::numeric_limits<float>::infinity();
    o.resize(v.size());
    saved.resize(kB * kSaved * kH * kV * kK);
  }

  void run(bool saves) {
    const auto tensor = [](std::vector<float>& x, const Dims& shape) {
      return TensorView::contiguous(x.data(), DType::kFloat32, shape);
    };
    GlaForwardArgs args;
    args.q = tensor(q, {kB, kT, kH, kK});
    args.k = tensor(k, {kB, kT, kH, kK});
    args.v = tensor(v, {kB, kT, kH, kV});
    args.o = tensor(o, {kB, kT, kH, kV});
    args.log_decay = tensor(g, {kB, kT, kH});
    args.initial_state = tensor(initial, {kB, kH, kK, kV});
    if (saves) args.saved_states = tensor(saved, {kB, kSaved, kH, kV, kK});
    gla_forward(args);
  }

  /// Compares saved_states of one head with the recurrence.
  void check(std::int64_t b, std::int64_t h) const {
    const auto first = initial.begin() + (b * kH + h) * kK * kV;
    std::vector<double> state(first, first + kK * kV);
    for (std::int64_t t = 0; t < kT; ++t) {
      const std::int64_t token = (b * kT + t) * kH + h;
      for (std::int64_t i = 0; i < kK; ++i) {
        for (std::int64_t j = 0; j < kV; ++j) {
          double& s = state[i * kV + j];
          const std::int64_t line = (b * kSaved + t / 128) * kH + h;
          if (t % 128 == 0) {
            ASSERT_NEAR(saved[(line * kV + j) * kK + i], s, 1e-4) << t << ' ' << i << ' ' << j;
          }
          s = std::exp(static_cast<double>(g[token])) * s +
              static_cast<double>(k[token * kK + i]) * v[token * kV + j];
        }
      }
    }
  }

  std::vector<float> q, k, v, g, initial, o, saved;
};

/// By rows, and by waves of chunks, which few rows for the threads get: the same bits, and o has
/// those that it has without.
TEST(Gla, SavesStatesTransposed) {
  const int threads = omp_get_max_threads();
  SavingCall plain, rows, waves;
  omp_set_num_threads(1);
  plain.run(false);
  rows.run(true);
  omp_set_num_threads(7);
  waves.run(true);
  omp_set_num_threads(threads);
  for (std::int64_t b = 0; b < SavingCall::kB; ++b) {
    for (std::int64_t h = 0; h < SavingCall::kH; ++h) rows.check(b, h);
  }
  EXPECT_EQ(waves.saved, rows.saved);
  EXPECT_EQ(rows.o, plain.o);
  EXPECT_EQ(waves.o, plain.o);
}

}  // namespace
}  // namespace tandem::tools
