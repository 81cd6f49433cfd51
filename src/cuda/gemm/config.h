// Tile, stages and threads of the GEMM main loop (gemm/loop.cuh).
#pragma once

namespace tandem::cuda::gemm {

/// What a CTA computes, and how much of the contracted axis a stage holds.
constexpr int kTileRows = 128;
constexpr int kTileColumns = 128;
constexpr int kTileDepth = 64;

/// Which operand is read transposed, in terms of row-major matrices: A B^T, A B, or A^T B.
enum class Layout { kNT, kNN, kTN };

/// A product of 16-bit matrices of ElementT. With kTN the rows of A and B are tokens, which are
/// contracted.
template <class ElementT, Layout kLayoutT>
struct Config {
  using Element = ElementT;
  static constexpr Layout kLayout = kLayoutT;
  static constexpr bool kContractsTokens = kLayout == Layout::kTN;
  static constexpr int kThreads = 288;  // two warpgroups multiply 64 rows each, a thread loads
  static constexpr int kStages = 3;
  static constexpr int kOperandBytes = kTileRows * kTileDepth * 2;
  static_assert(kTileRows == kTileColumns);
};

}  // namespace tandem::cuda::gemm
