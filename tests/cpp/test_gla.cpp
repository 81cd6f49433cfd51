// gla_forward where its cases do not reach (test_every_case.cpp).
#include <gtest/gtest.h>

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

}  // namespace
}  // namespace tandem::tools
