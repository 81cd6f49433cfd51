#include "cuda/gla/common/remembered.cuh"

#include <cmath>
#include <limits>

#include "cuda/parts/stream_order.cuh"
#include "cuda/runtime/launch.h"
#include "tests/parts/gpu_test.h"

namespace tandem::cuda::gla {
namespace {

constexpr int kThreads = 384;
constexpr int kHeads = 3;

template <bool kReverseOf>
struct Config {
  static constexpr int kChunk = 64;
  static constexpr bool kReverse = kReverseOf;
};

using Sums = DecaySumsShared<kThreads, 2>;

struct RememberedParams {
  DecayTensor decay;
  Item item;
  Span span;
  bool gives_up;
  int* remembered;  // [threads, 2]
};

/// Looks at the span twice.
template <bool kReverse>
__global__ void count_remembered(const __grid_constant__ RememberedParams params) {
  __shared__ Sums shared;
  follow_stream();
  if (threadIdx.x < 32 * Sums::kFirstWarp) return;
  const Span spans[2] = {params.span, params.span};
  int remembered[2];
  find_remembered<Config<kReverse>>(shared, params.decay, params.item, params.item.head, spans,
                                    params.gives_up, remembered);
  params.remembered[2 * threadIdx.x] = remembered[0];
  params.remembered[2 * threadIdx.x + 1] = remembered[1];
}

class Remembered : public GpuPart {
 protected:
  /// What all threads return for the decays of a sequence's tokens, of which the item has those
  /// from `begin` on.
  template <bool kReverse>
  static int of(const std::vector<float>& decays, int begin, int last, int count,
                bool gives_up = false) {
    // Other heads have no decay: who reads theirs remembers all.
    std::vector<float> strided(decays.size() * kHeads, 0.0f);
    for (std::size_t i = 0; i < decays.size(); ++i) strided[i * kHeads + 1] = decays[i];
    const DeviceArray<float> device(strided);
    DeviceArray<int> remembered(2 * kThreads);
    RememberedParams params{
        {device.device, 0, kHeads, 1}, {}, {last, count}, gives_up, remembered.device};
    params.item.batch = 0;
    params.item.head = 1;
    params.item.begin = begin;
    params.item.before = begin;
    params.item.length = params.item.left = static_cast<int>(decays.size()) - begin;
    launch_kernel("remembered", count_remembered<kReverse>,
                  {.blocks = 1, .threads = kThreads, .shared_bytes = 0}, nullptr, params);
    finish();
    const std::vector<int>& all = remembered.download();
    const std::size_t first = 2 * 32 * Sums::kFirstWarp;
    for (std::size_t i = first; i < all.size(); ++i) EXPECT_EQ(all[i], all[first]);
    return all[first];
  }
  /// Of a span of all chunks, from its last token back.
  static int of_all(const std::vector<float>& decays) {
    const int chunks = static_cast<int>(decays.size() + 63) / 64;
    return of<false>(decays, 0, chunks - 1, chunks);
  }
};

constexpr float kInfinity = std::numeric_limits<float>::infinity();

TEST_F(Remembered, AsManyChunksAsDecaysLeave) {
  const auto constant = [](int tokens, float decay) { return std::vector(tokens, decay); };
  EXPECT_EQ(of_all(constant(640, 0.0f)), 10);
  EXPECT_EQ(of_all(constant(640, -kInfinity)), 1);
  EXPECT_EQ(of_all(constant(640, -1.0f)), 1);      // 92 bits a chunk
  EXPECT_EQ(of_all(constant(640, -0.5f)), 2);      // 46
  EXPECT_EQ(of_all(constant(640, -0.1f)), 7);      // 9.23
  EXPECT_EQ(of_all(constant(639, -0.1f)), 7);      // and a partial chunk
  EXPECT_EQ(of_all(constant(580, -0.1f)), 8);      // of four tokens
  EXPECT_EQ(of_all(constant(64000, -0.01f)), 70);  // more than are looked at together
  EXPECT_EQ(of_all(constant(64 * 69, -0.01f)), 69);
  EXPECT_EQ(of<false>({}, 0, -1, 0), 0);
}

TEST_F(Remembered, NothingFromBeforeAReset) {
  for (const int token : {0, 63, 64, 130, 639}) {
    std::vector<float> decays(640, 0.0f);
    decays[token] = -kInfinity;
    EXPECT_EQ(of_all(decays), 10 - token / 64) << token;
    EXPECT_EQ(of<true>(decays, 0, 9, 10), token / 64 + 1) << token;
  }
}

TEST_F(Remembered, GrowthKeepsWhatItBringsBack) {
  std::vector<float> decays(640, 0.0f);
  for (int i = 576; i < 640; ++i) decays[i] = -1.0f;
  EXPECT_EQ(of_all(decays), 1);
  for (int i = 64; i < 96; ++i) decays[i] = 1.0f;  // 46 bits, of 92
  EXPECT_EQ(of_all(decays), 10);
  for (int i = 500; i < 576; ++i) decays[i] = -1.0f;  // 202 bits: a product of factors is 0
  EXPECT_EQ(of_all(decays), 1);
}

TEST_F(Remembered, AllWhereADecayIsNan) {
  std::vector<float> decays(640, 0.0f);
  decays[100] = std::nanf("");
  EXPECT_EQ(of_all(decays), 10);
  decays[600] = -1.0f;
  EXPECT_EQ(of_all(decays), 10);
  decays[400] = -kInfinity;  // what comes before is forgotten
  EXPECT_EQ(of_all(decays), 4);
}

TEST_F(Remembered, GivesUpAsThingsGo) {
  std::vector<float> decays(6400, -0.01f);  // 92 bits in all
  EXPECT_EQ(of<false>(decays, 0, 99, 100, true), 70);
  for (int i = 6000; i < 6400; ++i) decays[i] = 0.0f;
  EXPECT_EQ(of<false>(decays, 0, 99, 100), 76);
  EXPECT_EQ(of<false>(decays, 0, 99, 100, true), 100);
}

TEST_F(Remembered, TokensBeforeTheItem) {
  std::vector<float> decays(1000, -0.5f);
  EXPECT_EQ(of<false>(decays, 320, -1, 5), 2);
  EXPECT_EQ(of<false>(decays, 64, -1, 1), 1);
  // In a reverse walk the span ends where the item begins.
  EXPECT_EQ(of<true>(decays, 320, 10, 11), 2);
}

}  // namespace
}  // namespace tandem::cuda::gla
