// The forward walk of a scan on the CPU, wherever x comes from.
//
// Work is cut in two ways, which give the same bits: by blocks (a thread walks a block of channels
// of one sequence from its first chunk to its last) and, where those are too few or too uneven for
// the cores, by chunks: all chunks' sums in parallel, the states from chunk to chunk, then all
// outputs. The second way reads x and the decays twice.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "core/real.h"
#include "cpu/parallel.h"
#include "cpu/scan_chunks.h"
#include "ops/gated_scan_problem.h"

namespace tandem::cpu {

/// Walks a scan in Real (core/real.h). load_x(tile, thread, x) fills a tile with x. kept_states are
/// those of ScanGradients, or null.
template <typename Real, class LoadX>
class ScanWalk {
 public:
  ScanWalk(const ScanRecurrence& scan, const TokenTensor& out, Real* final_state,
           const LoadX& load_x, Real* kept_states = nullptr)
      : scan_(scan),
        out_(out),
        final_state_(final_state),
        load_x_(load_x),
        kept_states_(kept_states),
        chunks_(scan) {}

  void run() {
    clear_outside(scan_, scan_.dtype, out_);
    const int threads = parallel_threads();
    scratch_.resize(threads);
    std::vector<Sequence> sequences = chunks_.sequences();
    std::stable_sort(sequences.begin(), sequences.end(), [](const Sequence& a, const Sequence& b) {
      return ScanChunks::count(a) > ScanChunks::count(b);
    });
    std::vector<std::int64_t> loads;
    for (const Sequence& one : sequences) {
      loads.insert(loads.end(), chunks_.blocks(), ScanChunks::count(one));
    }
    constexpr double kSecondRead = 1.6;  // what walking by chunks costs
    if (threads == 1 || fills_threads(loads, threads, kSecondRead)) {
      walk_blocks(sequences, threads);
    } else {
      walk_chunks(threads);
    }
  }

 private:
  static constexpr int kTile = kScanRows * kScanColumns;
  struct Scratch {
    Real decay[kTile];
    Real x[kTile];
    Real gate[kTile];
    Real states[kTile + kScanColumns];
    Real total[kScanColumns];
    Real sum[kScanColumns];
  };

  void load(const ScanTile& tile, int thread, Scratch& s) const {
    load_decays(scan_, tile, s.decay);
    load_x_(tile, thread, s.x);
  }

  /// Writes a tile's outputs, from the state in the first line of s.states.
  void write_output(const ScanTile& tile, Scratch& s) const {
    scan_states(tile.shape(), s.decay, s.x, s.states);
    if (kept_states_) keep_states(tile, s.states);
    Real* out = s.states + kScanColumns;
    if (scan_.gate.data) {
      load_tile(scan_.dtype, scan_.gate, tile, s.gate);
      apply_gate(tile.shape(), s.gate, out);
    }
    store_tile(scan_.dtype, out, tile, out_);
  }

  void keep_states(const ScanTile& tile, const Real* states) const {
    const ScanChunk& chunk = tile.chunk;
    const std::int64_t lines = (scan_.T + kKeptStateTokens - 1) / kKeptStateTokens;
    for (int i = 0; i < chunk.rows; ++i) {
      const std::int64_t t = chunk.begin + i;
      if (t % kKeptStateTokens != 0 || t == chunk.sequence->begin) continue;
      const std::int64_t line = chunk.sequence->b * lines + t / kKeptStateTokens;
      std::copy_n(states + i * kScanColumns, tile.block.columns,
                  kept_states_ + line * scan_.D + tile.block.first);
    }
  }

  void write_final_state(const Sequence& sequence, ScanBlock block, const Real* state) const {
    if (!final_state_) return;
    std::copy_n(state, block.columns, final_state_ + sequence.n * scan_.D + block.first);
  }

  void walk_blocks(const std::vector<Sequence>& sequences, int threads) {
    const std::int64_t items = std::ssize(sequences) * chunks_.blocks();
    parallel_for(items, threads, Schedule::kDynamic, [&](std::int64_t i, int thread) {
      Scratch& s = scratch_[thread];
      const Sequence& sequence = sequences[i / chunks_.blocks()];
      const ScanBlock block = chunks_.block(i % chunks_.blocks());
      Real* state = s.states;
      read_state(as<Real>(scan_.initial_state), sequence.n, scan_.D, block, state);
      for (std::int64_t c = 0; c < ScanChunks::count(sequence); ++c) {
        const ScanTile tile{chunks_.chunk(sequence, c), block};
        load(tile, thread, s);
        multiply_decays(tile.shape(), s.decay, s.total);
        sum_states(tile.shape(), s.decay, s.x, s.sum);
        pass_on(block.columns, s.total, state, s.sum);
        write_output(tile, s);
        std::copy_n(s.sum, block.columns, state);
      }
      write_final_state(sequence, block, state);
    });
  }

  void walk_chunks(int threads) {
    const std::int64_t D = scan_.D, blocks = chunks_.blocks();
    const std::int64_t tiles = std::ssize(chunks_.all()) * blocks;
    std::vector<Real> totals(chunks_.slots() * D), states(chunks_.slots() * D);
    const auto tile_at = [&](std::int64_t i) {
      return ScanTile{chunks_.all()[i / blocks], chunks_.block(i % blocks)};
    };
    parallel_for(tiles, threads, Schedule::kStatic, [&](std::int64_t i, int thread) {
      Scratch& s = scratch_[thread];
      const ScanTile tile = tile_at(i);
      const std::int64_t at = tile.chunk.slot * D + tile.block.first;
      load(tile, thread, s);
      multiply_decays(tile.shape(), s.decay, totals.data() + at);
      sum_states(tile.shape(), s.decay, s.x, states.data() + at + D);
    });
    parallel_for(scan_.N * blocks, threads, Schedule::kStatic, [&](std::int64_t i, int) {
      const Sequence& sequence = chunks_.sequences()[i / blocks];
      const ScanBlock block = chunks_.block(i % blocks);
      std::int64_t at = chunks_.first_slot(sequence) * D + block.first;
      read_state(as<Real>(scan_.initial_state), sequence.n, scan_.D, block, states.data() + at);
      for (std::int64_t c = 0; c < ScanChunks::count(sequence); ++c, at += D) {
        pass_on(block.columns, totals.data() + at, states.data() + at, states.data() + at + D);
      }
      write_final_state(sequence, block, states.data() + at);
    });
    parallel_for(tiles, threads, Schedule::kStatic, [&](std::int64_t i, int thread) {
      Scratch& s = scratch_[thread];
      const ScanTile tile = tile_at(i);
      load(tile, thread, s);
      std::copy_n(states.data() + tile.chunk.slot * D + tile.block.first, tile.block.columns,
                  s.states);
      write_output(tile, s);
    });
  }

  const ScanRecurrence& scan_;
  TokenTensor out_;
  Real* final_state_;
  const LoadX& load_x_;
  Real* kept_states_;
  ScanChunks chunks_;
  std::vector<Scratch> scratch_;  // of each thread
};

}  // namespace tandem::cpu
