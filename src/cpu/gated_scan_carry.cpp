// gated_scan_decay, gated_scan_carry and its backward on the CPU: products of decays by chunks, all
// chunks side by side, what they leave of a state added to outputs, and the gradient by the state.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "core/real.h"
#include "cpu/isa.h"
#include "cpu/parallel.h"
#include "cpu/scan_chunks.h"
#include "ops/gated_scan.h"

namespace tandem::cpu {
namespace {

static_assert(kGatedScanChunk == kScanRows);
constexpr int kTile = kScanRows * kScanColumns;

/// Where a tile's line of `before` begins.
std::int64_t line_of(const ScanDecays& scan, const ScanTile& tile) {
  const ScanChunk& chunk = tile.chunk;
  return (chunk.sequence->b * scan.chunks() + chunk.begin / kScanRows) * scan.D + tile.block.first;
}

/// Calls visit(tile, thread) for every chunk and block of channels.
template <class Visit>
void for_each_tile(const ScanChunks& chunks, int threads, const Visit& visit) {
  const std::int64_t blocks = chunks.blocks();
  parallel_for(std::ssize(chunks.all()) * blocks, threads, Schedule::kStatic,
               [&](std::int64_t i, int thread) {
                 visit(ScanTile{chunks.all()[i / blocks], chunks.block(i % blocks)}, thread);
               });
}

template <typename Real>
void multiply(const GatedScanDecayProblem& p) {
  const ScanChunks chunks(p);
  const int threads = parallel_threads();
  std::vector<std::vector<Real>> decays(threads, std::vector<Real>(kTile));
  Real* before = as<Real>(p.before);
  for_each_tile(chunks, threads, [&](const ScanTile& tile, int thread) {
    load_decays(p, tile, decays[thread].data());
    multiply_decays(tile.shape(), decays[thread].data(), before + line_of(p, tile));
  });
  // From a product of each chunk to that of all before it.
  parallel_for(p.B * chunks.blocks(), threads, Schedule::kStatic, [&](std::int64_t i, int) {
    const std::int64_t b = i / chunks.blocks();
    const ScanBlock block = chunks.block(i % chunks.blocks());
    Real product[kScanColumns];
    std::fill_n(product, block.columns, Real{1});
    Real* line = before + b * p.chunks() * p.D + block.first;
    for (std::int64_t c = 0; c < p.chunks(); ++c, line += p.D) {
      Real next[kScanColumns] = {};
      pass_on(block.columns, line, product, next);
      std::copy_n(product, block.columns, line);
      std::copy_n(next, block.columns, product);
    }
    std::copy_n(product, block.columns, as<Real>(p.total) + b * p.D + block.first);
  });
}

/// Makes 0 of what is below the normal numbers; returns whether anything is left.
template <typename Real>
bool drop_smallest(int columns, Real* line) {
  bool any = false;
  for (int j = 0; j < columns; ++j) {
    if (std::abs(line[j]) < std::numeric_limits<Real>::min()) line[j] = 0;
    any |= line[j] != 0;
  }
  return any;
}

/// Sets what the decays before a tile leave of the carry; returns whether that is anything.
template <typename Real>
bool carry_to(const GatedScanCarryProblem& p, const ScanTile& tile, Real* state) {
  const Real* before = as<Real>(p.before) + line_of(p, tile);
  const Real* carry = as<Real>(p.carry) + tile.chunk.sequence->b * p.D + tile.block.first;
  std::fill_n(state, tile.block.columns, Real{0});
  pass_on(tile.block.columns, before, carry, state);
  return drop_smallest(tile.block.columns, state);
}

template <typename Real>
void add_carry(const GatedScanCarryProblem& p) {
  struct Scratch {
    Real decay[kTile], out[kTile], gate[kTile], states[kTile + kScanColumns];
  };
  const ScanChunks chunks(p);
  const int threads = parallel_threads();
  const std::vector<Real> nothing(kTile);
  std::vector<Scratch> scratch(threads);
  for_each_tile(chunks, threads, [&](const ScanTile& tile, int thread) {
    Scratch& s = scratch[thread];
    if (!carry_to(p, tile, s.states)) return;
    load_decays(p, tile, s.decay);
    load_tile(p.dtype, p.out, tile, s.out);
    if (p.gate.data) load_tile(p.dtype, p.gate, tile, s.gate);
    scan_states(tile.shape(), s.decay, nothing.data(), s.states);
    const Real* gate = p.gate.data ? s.gate : nullptr;
    add_states(tile.shape(), gate, s.states + kScanColumns, s.out);
    store_tile(p.dtype, s.out, tile, p.out);
  });
}

template <typename Real>
void sum_outputs(const GatedScanCarryBackwardProblem& p) {
  struct Scratch {
    Real decay[kTile], d_out[kTile], gate[kTile], products[kTile + kScanColumns];
  };
  const ScanChunks chunks(p);
  const int threads = parallel_threads();
  const std::vector<Real> nothing(kTile);
  std::vector<Scratch> scratch(threads);
  Real* sums = as<Real>(p.sums);
  for_each_tile(chunks, threads, [&](const ScanTile& tile, int thread) {
    Scratch& s = scratch[thread];
    const int columns = tile.block.columns;
    Real* sum = sums + line_of(p, tile);
    std::fill_n(sum, columns, Real{0});
    std::copy_n(as<Real>(p.before) + line_of(p, tile), columns, s.products);
    if (!drop_smallest(columns, s.products)) return;
    load_decays(p, tile, s.decay);
    load_tile(p.dtype, p.d_out, tile, s.d_out);
    if (p.gate.data) {
      load_tile(p.dtype, p.gate, tile, s.gate);
      apply_gate(tile.shape(), s.gate, s.d_out);
    }
    scan_states(tile.shape(), s.decay, nothing.data(), s.products);
    for (int i = 0; i < tile.chunk.rows; ++i) {
      pass_on(columns, s.products + (i + 1) * kScanColumns, s.d_out + i * kScanColumns, sum);
    }
  });
  parallel_for(p.B * chunks.blocks(), threads, Schedule::kStatic, [&](std::int64_t i, int) {
    const std::int64_t b = i / chunks.blocks();
    const ScanBlock block = chunks.block(i % chunks.blocks());
    Real* total = as<Real>(p.d_carry) + b * p.D + block.first;
    std::fill_n(total, block.columns, Real{0});
    const Real* line = sums + b * p.chunks() * p.D + block.first;
    for (std::int64_t c = 0; c < p.chunks(); ++c, line += p.D) {
      for (int j = 0; j < block.columns; ++j) total[j] += line[j];
    }
  });
}

}  // namespace

void gated_scan_decay(const GatedScanDecayProblem& problem, const CallOptions&) {
  isa();  // throws before anything is written
  run_with_real(problem.dtype, [&]<typename Real>() { multiply<Real>(problem); });
}

void gated_scan_carry(const GatedScanCarryProblem& problem, const CallOptions&) {
  isa();  // throws before anything is written
  run_with_real(problem.dtype, [&]<typename Real>() { add_carry<Real>(problem); });
}

void gated_scan_carry_backward(const GatedScanCarryBackwardProblem& problem, const CallOptions&) {
  isa();  // throws before anything is written
  run_with_real(problem.dtype, [&]<typename Real>() { sum_outputs<Real>(problem); });
}

}  // namespace tandem::cpu
