// causal_conv1d's backward on the CPU: tiles as the forward's, each with the dz of the W - 1 tokens
// behind it, too. The weight's and the bias's gradients are summed per chunk of tokens, then over
// the chunks in their order, so that the bits do not depend on the number of threads.
#include <cstdint>
#include <vector>

#include "core/real.h"
#include "cpu/causal_conv1d_chunks.h"
#include "cpu/isa.h"
#include "cpu/parallel.h"
#include "ops/causal_conv1d.h"

namespace tandem::cpu {
namespace {

constexpr int kHalo = kMostTaps - 1;

template <typename Real>
class ConvBackward {
 public:
  explicit ConvBackward(const CausalConv1dBackwardProblem& problem)
      : p_(problem),
        f_(problem.forward),
        weights_(problem.forward),
        sequences_(sequences_of(f_.cu_seqlens, f_.N, f_.T)),
        chunks_(conv_chunks(sequences_)) {
    if (p_.needs_sums()) sums_.resize(std::ssize(chunks_) * chunk_sums());
  }

  void run() {
    clear_outside(f_, p_.dx);
    const std::int64_t blocks = conv_blocks(f_.D);
    const auto for_blocks = [&](std::int64_t count, const auto& body) {
      parallel_for(count * blocks, parallel_threads(), Schedule::kStatic,
                   [&](std::int64_t i, int) { body(i / blocks, conv_block(f_.D, i % blocks)); });
    };
    if (p_.dx.data || p_.needs_sums()) {
      for_blocks(std::ssize(chunks_), [&](std::int64_t i, ConvBlock b) { differentiate(i, b); });
    }
    if (p_.d_initial_state.data) {
      for_blocks(f_.N, [&](std::int64_t n, ConvBlock b) { write_d_initial_state(n, b); });
    }
    if (p_.needs_sums()) {
      for_blocks(1, [&](std::int64_t, ConvBlock b) { write_sums(b); });
    }
  }

 private:
  /// Of W - 1 lines before its tokens, and as many behind.
  struct Tile {
    Real inputs[(kConvRows + 2 * kHalo) * kConvColumns];
    Real z[(kConvRows + kHalo) * kConvColumns];
    Real dz[(kConvRows + kHalo) * kConvColumns];
    Real dx[kConvRows * kConvColumns];
  };

  const Real* weight(ConvBlock block) const { return weights_.weight.data() + block.first; }
  /// Values of one chunk's sums: a line for each w, and the bias's.
  std::int64_t chunk_sums() const { return std::int64_t{f_.W + 1} * f_.D; }

  /// Computes dz of tokens [begin, end), and zeros up to `rows` rows; reads the tile's inputs, from
  /// W - 1 tokens before on.
  void make_dz(const Sequence& sequence, std::int64_t begin, std::int64_t end, int rows,
               ConvBlock block, Tile& tile) const {
    const ConvShape shape{static_cast<int>(end - begin), block.columns, f_.W};
    read_inputs(f_, sequence, begin - (f_.W - 1), end, block, tile.inputs);
    read_tokens(f_.dtype, p_.d_out, sequence, begin, shape.rows, block, tile.dz);
    if (f_.silu) {
      convolve(shape, tile.inputs, weight(block), f_.D, weights_.bias.data() + block.first, tile.z);
      differentiate_silu(shape, tile.z, tile.dz);
    }
    for (int i = shape.rows; i < rows; ++i) {
      std::fill_n(tile.dz + i * kConvColumns, block.columns, Real{0});
    }
  }

  /// Reads what the final state's gradient adds to that of token t, or of the state's tokens, which
  /// precede the sequence.
  void read_d_final(const Sequence& sequence, std::int64_t t, ConvBlock block, Real* to) const {
    const std::int64_t j = t - sequence.end + f_.W - 1;
    if (j < 0) return static_cast<void>(std::fill_n(to, block.columns, Real{0}));
    read_state_token(f_.dtype, p_.d_final_state, sequence.n, block, j, to);
  }

  void differentiate(std::int64_t index, ConvBlock block) {
    Tile tile;
    const ConvChunk& chunk = chunks_[index];
    const Sequence& sequence = *chunk.sequence;
    const ConvShape shape{chunk.rows, block.columns, f_.W};
    const int rows = chunk.rows + f_.W - 1;
    make_dz(sequence, chunk.begin, std::min(chunk.begin + rows, sequence.end), rows, block, tile);
    if (p_.needs_sums()) {
      sum_taps(shape, tile.inputs, tile.dz, sums_.data() + index * chunk_sums() + block.first,
               f_.D);
    }
    if (!p_.dx.data) return;
    for (int i = 0; i < chunk.rows; ++i) {
      read_d_final(sequence, chunk.begin + i, block, tile.dx + i * kConvColumns);
    }
    correlate(shape, tile.dz, weight(block), f_.D, tile.dx);
    write_tokens(f_.dtype, tile.dx, chunk, block, p_.dx);
  }

  /// The state's tokens have no dz of their own: zeros lie in front of the sequence's.
  void write_d_initial_state(std::int64_t n, ConvBlock block) const {
    Tile tile;
    const Sequence& sequence = sequences_[n];
    const int tokens = f_.W - 1;
    make_dz(sequence, sequence.begin, std::min(sequence.begin + tokens, sequence.end), tokens,
            block, tile);
    Real dz[2 * kHalo * kConvColumns] = {};
    std::copy_n(tile.dz, tokens * kConvColumns, dz + tokens * kConvColumns);
    for (int i = 0; i < tokens; ++i) {
      read_d_final(sequence, sequence.begin - tokens + i, block, tile.dx + i * kConvColumns);
    }
    correlate({tokens, block.columns, f_.W}, dz, weight(block), f_.D, tile.dx);
    for (int i = 0; i < tokens; ++i) {
      write_state_token(f_.dtype, p_.d_initial_state, n, block, i, tile.dx + i * kConvColumns);
    }
  }

  void write_sums(ConvBlock block) const {
    Real total[kConvColumns];
    for (int w = 0; w <= f_.W; ++w) {
      const ConvTaps& to = w < f_.W ? p_.d_weight : p_.d_bias;
      if (!to.data) continue;
      std::fill_n(total, block.columns, Real{0});
      for (std::int64_t i = 0; i < std::ssize(chunks_); ++i) {
        const Real* sums = sums_.data() + i * chunk_sums() + std::int64_t{w} * f_.D + block.first;
        for (int j = 0; j < block.columns; ++j) total[j] += sums[j];
      }
      const std::int64_t at = block.first * to.channel_stride + (w < f_.W ? w : 0);
      rows_from_float(total, 1, block.columns, 1, Real{1},
                      {to.dtype, element_at(to.dtype, to.data, at), to.channel_stride});
    }
  }

  const CausalConv1dBackwardProblem& p_;
  const CausalConv1dForwardProblem& f_;
  ConvWeights<Real> weights_;
  std::vector<Sequence> sequences_;
  std::vector<ConvChunk> chunks_;
  std::vector<Real> sums_;  // of each chunk
};

}  // namespace

void causal_conv1d_backward(const CausalConv1dBackwardProblem& problem, const CallOptions&) {
  const CausalConv1dForwardProblem& f = problem.forward;
  check_cu_seqlens("causal_conv1d_backward", f.cu_seqlens, f.N, f.T);
  isa();  // throws before anything is written
  run_with_real(f.dtype, [&]<typename Real>() { ConvBackward<Real>(problem).run(); });
}

}  // namespace tandem::cpu
