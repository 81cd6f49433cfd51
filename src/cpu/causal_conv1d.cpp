// causal_conv1d on the CPU: tiles of 64 tokens and 128 channels, all in parallel. A tile reads the
// W - 1 tokens before it again.
#include <cstdint>
#include <vector>

#include "core/real.h"
#include "cpu/causal_conv1d_chunks.h"
#include "cpu/isa.h"
#include "cpu/parallel.h"
#include "ops/causal_conv1d.h"

namespace tandem::cpu {
namespace {

template <typename Real>
void convolve_chunk(const CausalConv1dForwardProblem& p, const ConvWeights<Real>& weights,
                    const ConvChunk& chunk, ConvBlock block) {
  Real inputs[(kConvRows + kMostTaps - 1) * kConvColumns];
  Real z[kConvRows * kConvColumns];
  const ConvShape shape{chunk.rows, block.columns, p.W};
  read_inputs(p, *chunk.sequence, chunk.begin - (p.W - 1), chunk.begin + chunk.rows, block, inputs);
  convolve(shape, inputs, weights.weight.data() + block.first, p.D,
           weights.bias.data() + block.first, z);
  if (p.silu) apply_silu(shape, z);
  write_tokens(p.dtype, z, chunk, block, p.out);
}

template <typename Real>
void write_final_state(const CausalConv1dForwardProblem& p, const Sequence& sequence,
                       ConvBlock block) {
  Real inputs[(kMostTaps - 1) * kConvColumns];
  read_inputs(p, sequence, sequence.end - (p.W - 1), sequence.end, block, inputs);
  for (int j = 0; j + 1 < p.W; ++j) {
    write_state_token(p.dtype, p.final_state, sequence.n, block, j, inputs + j * kConvColumns);
  }
}

template <typename Real>
void run(const CausalConv1dForwardProblem& p) {
  const ConvWeights<Real> weights(p);
  const std::vector<Sequence> sequences = sequences_of(p.cu_seqlens, p.N, p.T);
  const std::vector<ConvChunk> chunks = conv_chunks(sequences);
  const std::int64_t blocks = conv_blocks(p.D);
  const int threads = parallel_threads();
  clear_outside(p, p.out);
  parallel_for(std::ssize(chunks) * blocks, threads, Schedule::kStatic, [&](std::int64_t i, int) {
    convolve_chunk(p, weights, chunks[i / blocks], conv_block(p.D, i % blocks));
  });
  if (!p.final_state.data) return;
  parallel_for(p.N * blocks, threads, Schedule::kStatic, [&](std::int64_t i, int) {
    write_final_state<Real>(p, sequences[i / blocks], conv_block(p.D, i % blocks));
  });
}

/// Convolves one token of a block of channels, and moves their state on.
template <typename Real>
void step_block(const CausalConv1dStepProblem& p, const ConvWeights<Real>& weights, std::int64_t b,
                ConvBlock block) {
  Real inputs[kMostTaps * kConvColumns];
  Real z[kConvColumns];
  const auto row = [&](const MatrixTensor& matrix) {
    return element_at(p.dtype, matrix.data, b * matrix.row_stride + block.first);
  };
  Real* token = inputs + (p.W - 1) * kConvColumns;
  for (int j = 0; j + 1 < p.W; ++j) {
    read_state_token(p.dtype, p.state, b, block, j, inputs + j * kConvColumns);
  }
  rows_to_float({p.dtype, row(p.x), 0}, 1, block.columns, token, 0);
  const ConvShape shape{1, block.columns, p.W};
  convolve(shape, inputs, weights.weight.data() + block.first, p.D,
           weights.bias.data() + block.first, z);
  if (p.silu) apply_silu(shape, z);
  rows_from_float(z, 0, 1, block.columns, Real{1}, {p.dtype, row(p.out), 0});
  for (int j = 0; j + 1 < p.W; ++j) {
    write_state_token(p.dtype, p.state, b, block, j, inputs + (j + 1) * kConvColumns);
  }
}

template <typename Real>
void run(const CausalConv1dStepProblem& p) {
  const ConvWeights<Real> weights(p);
  const std::int64_t blocks = conv_blocks(p.D);
  parallel_for(p.B * blocks, parallel_threads(), Schedule::kStatic, [&](std::int64_t i, int) {
    step_block(p, weights, i / blocks, conv_block(p.D, i % blocks));
  });
}

}  // namespace

void causal_conv1d_forward(const CausalConv1dForwardProblem& problem, const CallOptions&) {
  check_cu_seqlens("causal_conv1d_forward", problem.cu_seqlens, problem.N, problem.T);
  isa();  // throws before anything is written
  run_with_real(problem.dtype, [&]<typename Real>() { run<Real>(problem); });
}

void causal_conv1d_step(const CausalConv1dStepProblem& problem, const CallOptions&) {
  isa();  // throws before anything is written
  run_with_real(problem.dtype, [&]<typename Real>() { run<Real>(problem); });
}

std::vector<VariantInfo> causal_conv1d_variants() {
  return {{"causal_conv1d", "causal_conv1d_forward.cpu", ""},
          {"causal_conv1d", "causal_conv1d_backward.cpu", ""},
          {"causal_conv1d", "causal_conv1d_step.cpu", ""}};
}

}  // namespace tandem::cpu
