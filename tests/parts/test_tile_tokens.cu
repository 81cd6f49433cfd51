#include "cuda/scan/tile_tokens.cuh"

#include "tests/parts/gpu_test.h"

namespace tandem::cuda::scan {
namespace {

bool operator==(const TokenKind& a, const TokenKind& b) {
  return a.first == b.first && a.last == b.last;
}

/// A CTA per tile.
template <int kTileTokens, int kThreads>
__global__ void find_kinds(ScanSequences sequences, int b, TokenKind* kinds) {
  __shared__ TokenKind own[kTileTokens];
  const int begin = blockIdx.x * kTileTokens;
  clear_tokens<kTileTokens, kThreads>(sequences, b, begin, own);
  __syncthreads();
  if (threadIdx.x < 32) mark_tokens<kTileTokens>(sequences, begin, own);
  __syncthreads();
  for (int t = threadIdx.x; t < kTileTokens; t += kThreads) kinds[begin + t] = own[t];
}

class GpuTileTokens : public GpuPart {
 protected:
  template <int kTileTokens, int kThreads>
  static std::vector<TokenKind> find(const ScanSequences& sequences, int b) {
    const unsigned tiles = (sequences.T + kTileTokens - 1) / kTileTokens + 1;  // one behind T
    DeviceArray<TokenKind> kinds(std::vector<TokenKind>(tiles * kTileTokens, {-9, -9}));
    find_kinds<kTileTokens, kThreads><<<tiles, kThreads>>>(sequences, b, kinds.device);
    finish();
    return kinds.download();
  }

  static void expect_same(const std::vector<TokenKind>& got, std::vector<TokenKind> expected) {
    expected.resize(got.size(), {TokenKind::kInside, TokenKind::kInside});  // behind T
    for (std::size_t t = 0; t < got.size(); ++t) {
      ASSERT_TRUE(got[t] == expected[t])
          << "token " << t << ": " << got[t].first << " " << got[t].last << " instead of "
          << expected[t].first << " " << expected[t].last;
    }
  }

  /// Sequences packed into T tokens, by walking over them.
  static void check(const std::vector<std::int32_t>& cu_seqlens, int T) {
    const int N = static_cast<int>(cu_seqlens.size()) - 1;
    std::vector<TokenKind> expected(T, {TokenKind::kOutside, TokenKind::kInside});
    for (int n = 0; n < N; ++n) {
      const int begin = cu_seqlens[n], end = cu_seqlens[n + 1];
      for (int t = begin; t < end; ++t) {
        expected[t] = {t == begin ? n : TokenKind::kInside, t == end - 1 ? n : TokenKind::kInside};
      }
    }
    DeviceArray<std::int32_t> offsets(cu_seqlens);
    const ScanSequences sequences{offsets.device, N, T};
    expect_same(find<64, 128>(sequences, 0), expected);
    expect_same(find<256, 64>(sequences, 0), expected);
  }
};

TEST_F(GpuTileTokens, ABatchRowIsASequence) {
  for (const int T : {1, 63, 64, 65, 1000}) {
    SCOPED_TRACE(T);
    std::vector<TokenKind> expected(T, {TokenKind::kInside, TokenKind::kInside});
    expected.front().first = expected.back().last = 5;
    expect_same(find<64, 128>({nullptr, 7, T}, 5), expected);
    expect_same(find<256, 64>({nullptr, 7, T}, 5), expected);
  }
}

TEST_F(GpuTileTokens, PackedSequencesOfEveryLength) {
  std::mt19937 generator(8);
  for (const int longest : {1, 2, 5, 100, 700}) {
    for (const int empty_of_8 : {0, 1, 7}) {
      SCOPED_TRACE(longest);
      std::vector<std::int32_t> cu_seqlens = {0};
      while (cu_seqlens.back() < 3000 && cu_seqlens.size() < 5000) {
        const bool empty = static_cast<int>(generator() % 8) < empty_of_8;
        const int length = empty ? 0 : 1 + static_cast<int>(generator() % longest);
        cu_seqlens.push_back(cu_seqlens.back() + length);
      }
      check(cu_seqlens, cu_seqlens.back());
    }
  }
}

TEST_F(GpuTileTokens, BoundariesAtTheEdgesOfTiles) {
  check({0, 64, 128, 128, 192, 255, 256, 320}, 320);
  check({0, 63, 65, 127, 129, 256, 257}, 257);
}

TEST_F(GpuTileTokens, TokensOutsideOfAllSequences) {
  check({70, 70, 130, 130, 200}, 300);
  check({0, 0, 0}, 100);
  check({100, 100}, 100);
  check({0}, 100);
}

TEST_F(GpuTileTokens, OffsetsStayWithinTheTokens) {
  DeviceArray<std::int32_t> wild({-50, 30, 90, 1 << 30});
  DeviceArray<std::int32_t> clamped({0, 30, 90, 100});
  expect_same(find<64, 128>({wild.device, 3, 100}, 0), find<64, 128>({clamped.device, 3, 100}, 0));
}

}  // namespace
}  // namespace tandem::cuda::scan
