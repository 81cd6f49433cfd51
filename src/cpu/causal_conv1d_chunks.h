// How a causal convolution is cut on the CPU, sequences into chunks and channels into blocks, and
// how tiles are read: a token before a sequence's first comes from its initial state.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "cpu/causal_conv1d_tile.h"
#include "cpu/elementwise.h"
#include "cpu/sequences.h"
#include "ops/causal_conv1d_problem.h"

namespace tandem::cpu {

/// Tokens [begin, begin + rows) of a sequence.
struct ConvChunk {
  const Sequence* sequence;
  std::int64_t begin;
  int rows;
};

/// Channels [first, first + columns).
struct ConvBlock {
  int first;
  int columns;
};

inline std::vector<ConvChunk> conv_chunks(const std::vector<Sequence>& sequences) {
  std::vector<ConvChunk> chunks;
  for (const Sequence& sequence : sequences) {
    for (std::int64_t t = sequence.begin; t < sequence.end; t += kConvRows) {
      chunks.push_back(
          {&sequence, t, static_cast<int>(std::min<std::int64_t>(kConvRows, sequence.end - t))});
    }
  }
  return chunks;
}

inline int conv_blocks(int D) { return (D - 1) / kConvColumns + 1; }
inline ConvBlock conv_block(int D, std::int64_t i) {
  const int first = static_cast<int>(i) * kConvColumns;
  return {first, std::min(kConvColumns, D - first)};
}

// Real below is what tiles are computed in (core/real.h).

/// The taps of all channels in Real: a line for each w. Without a bias it is 0.
template <typename Real>
struct ConvWeights {
  explicit ConvWeights(const CausalConv1d& p)
      : weight(static_cast<std::int64_t>(p.W) * p.D), bias(p.D) {
    for (int w = 0; w < p.W; ++w) read(p.weight, w, p.D, weight.data() + std::int64_t{w} * p.D);
    if (p.bias.data) read(p.bias, 0, p.D, bias.data());
  }

  std::vector<Real> weight, bias;

 private:
  static void read(const ConvTaps& taps, int w, int D, Real* to) {
    rows_to_float({taps.dtype, element_at(taps.dtype, taps.data, w), taps.channel_stride}, D, 1, to,
                  1);
  }
};

/// The block's channels of token j of sequence n's state.
inline Rows state_rows(DType dtype, const ConvState& state, std::int64_t n, ConvBlock block,
                       std::int64_t j) {
  const std::int64_t at = n * state.sequence_stride + block.first * state.channel_stride;
  return {dtype, element_at(dtype, state.data, at + j * state.token_stride), state.channel_stride};
}

/// Reads token j of a state; a null one is 0.
template <typename Real>
void read_state_token(DType dtype, const ConvState& state, std::int64_t n, ConvBlock block,
                      std::int64_t j, Real* to) {
  if (!state.data) return static_cast<void>(std::fill_n(to, block.columns, Real{0}));
  const Rows rows = state_rows(dtype, state, n, block, j);
  rows_to_float({dtype, rows.data, rows.stride}, block.columns, 1, to, 1);
}

template <typename Real>
void write_state_token(DType dtype, const ConvState& state, std::int64_t n, ConvBlock block,
                       std::int64_t j, const Real* from) {
  rows_from_float(from, 1, block.columns, 1, Real{1}, state_rows(dtype, state, n, block, j));
}

/// Reads rows [first, first + count) of a sequence's tensor [B,T,D], all inside of it.
template <typename Real>
void read_tokens(DType dtype, const TokenTensor& from, const Sequence& sequence, std::int64_t first,
                 std::int64_t count, ConvBlock block, Real* to) {
  const std::int64_t at = sequence.b * from.batch_stride + first * from.time_stride + block.first;
  rows_to_float({dtype, element_at(dtype, from.data, at), from.time_stride}, count, block.columns,
                to, kConvColumns);
}

template <typename Real>
void write_tokens(DType dtype, const Real* from, const ConvChunk& chunk, ConvBlock block,
                  const TokenTensor& to) {
  const std::int64_t at =
      chunk.sequence->b * to.batch_stride + chunk.begin * to.time_stride + block.first;
  rows_from_float(from, kConvColumns, chunk.rows, block.columns, Real{1},
                  {dtype, element_at(dtype, to.data, at), to.time_stride});
}

/// Reads inputs [first, end): tokens of the sequence and, before them, its initial state.
template <typename Real>
void read_inputs(const CausalConv1dForwardProblem& p, const Sequence& sequence, std::int64_t first,
                 std::int64_t end, ConvBlock block, Real* to) {
  for (; first < std::min(end, sequence.begin); ++first, to += kConvColumns) {
    read_state_token(p.dtype, p.initial_state, sequence.n, block, first - sequence.begin + p.W - 1,
                     to);
  }
  if (first < end) read_tokens(p.dtype, p.x, sequence, first, end - first, block, to);
}

/// Writes zeros at tokens of no sequence.
inline void clear_outside(const CausalConv1dForwardProblem& p, const TokenTensor& tensor) {
  if (!p.cu_seqlens || !tensor.data) return;
  const auto clear = [&](std::int64_t begin, std::int64_t end) {
    void* row = element_at(p.dtype, tensor.data, begin * tensor.time_stride);
    fill_rows_with_zero(end - begin, p.D, {p.dtype, row, tensor.time_stride});
  };
  clear(0, p.cu_seqlens[0]);
  clear(p.cu_seqlens[p.N], p.T);
}

}  // namespace tandem::cpu
