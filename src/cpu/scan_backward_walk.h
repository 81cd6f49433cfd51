// The backward of a scan on the CPU, wherever x comes from.
//
// The states and the gradients by them are serial in time, in opposite directions. Every chunk's
// own contribution to both is computed first, all in parallel; a short pass over the chunks adds
// them up (cpu/scan_chunks.h, slots); from there each chunk is on its own. Chunks and sums do not
// depend on the number of threads, so neither do the bits.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "core/real.h"
#include "cpu/parallel.h"
#include "cpu/scan_chunks.h"
#include "ops/gated_scan_problem.h"

namespace tandem::cpu {

/// Walks a scan back in Real (core/real.h). load_x(tile, thread, x) fills a tile with x; dx, of
/// dx_dtype, is not wanted when null.
template <typename Real, class LoadX>
class ScanBackwardWalk {
 public:
  ScanBackwardWalk(const ScanRecurrence& scan, const ScanGradients& gradients,
                   const TokenTensor& dx, DType dx_dtype, const LoadX& load_x)
      : f_(scan), p_(gradients), dx_(dx), dx_dtype_(dx_dtype), load_x_(load_x), chunks_(scan) {
    const std::int64_t size = chunks_.slots() * f_.D;
    totals_.resize(size);
    if (needs_states_) states_.resize(size);
    if (needs_gradients_) gradients_.resize(size);
  }

  void run() {
    clear_outside(f_, dx_dtype_, dx_);
    clear_outside(f_, f_.decay_dtype, p_.d_decay);
    clear_outside(f_, f_.dtype, p_.d_gate);
    const int threads = parallel_threads();
    scratch_.resize(threads);
    const std::int64_t blocks = chunks_.blocks();
    const auto for_tiles = [&](const auto& body) {
      parallel_for(std::ssize(chunks_.all()) * blocks, threads, Schedule::kStatic,
                   [&](std::int64_t i, int thread) {
                     body(ScanTile{chunks_.all()[i / blocks], chunks_.block(i % blocks)}, thread);
                   });
    };
    for_tiles([&](const ScanTile& tile, int thread) { sum_chunk(tile, thread); });
    parallel_for(f_.N * blocks, threads, Schedule::kStatic, [&](std::int64_t i, int) {
      pass_sequence(chunks_.sequences()[i / blocks], chunks_.block(i % blocks));
    });
    for_tiles([&](const ScanTile& tile, int thread) { differentiate(tile, thread); });
  }

 private:
  static constexpr int kTile = kScanRows * kScanColumns;
  struct Scratch {
    Real decay[kTile];
    Real x[kTile];  // x, then whatever is stored
    Real gate[kTile];
    Real d_out[kTile];
    Real d_states[kTile];
    Real states[kTile + kScanColumns];
    Real carry[kScanColumns];
  };

  std::int64_t at(const ScanTile& tile) const { return tile.chunk.slot * f_.D + tile.block.first; }

  /// Loads s.d_states: what each token's output adds to the gradient by its state.
  void load_d_out(const ScanTile& tile, Scratch& s) const {
    load_tile(f_.dtype, p_.d_out, tile, s.d_out);
    if (f_.gate.data) load_tile(f_.dtype, f_.gate, tile, s.gate);
    if (!needs_gradients_) return;
    std::copy_n(s.d_out, tile.chunk.rows * kScanColumns, s.d_states);
    if (f_.gate.data) apply_gate(tile.shape(), s.gate, s.d_states);
  }

  /// Sums the chunk's own contributions to the state after it and to the gradient before it, in the
  /// slots there, and its decay.
  void sum_chunk(const ScanTile& tile, int thread) {
    Scratch& s = scratch_[thread];
    const bool sums_states = needs_states_ && !tile.chunk.ends_sequence();
    const bool sums_gradients = needs_gradients_ && !tile.chunk.opens_sequence();
    if (!sums_states && !sums_gradients) return;
    load_decays(f_, tile, s.decay);
    multiply_decays(tile.shape(), s.decay, totals_.data() + at(tile));
    if (sums_states) {
      load_x_(tile, thread, s.x);
      sum_states(tile.shape(), s.decay, s.x, states_.data() + at(tile) + f_.D);
    }
    if (sums_gradients) {
      load_d_out(tile, s);
      Real* sum = gradients_.data() + at(tile);
      std::fill_n(sum, tile.block.columns, Real{0});
      scan_gradients(tile.shape(), s.decay, s.d_states, sum);
    }
  }

  /// Passes states and gradients through the slots of a sequence, from its first chunk to its last
  /// and back.
  void pass_sequence(const Sequence& sequence, ScanBlock block) {
    const std::int64_t D = f_.D, count = ScanChunks::count(sequence);
    const std::int64_t first = chunks_.first_slot(sequence) * D + block.first;
    const auto total = [&](std::int64_t c) { return totals_.data() + first + c * D; };
    if (needs_states_) {
      Real* states = states_.data() + first;
      read_state(as<Real>(f_.initial_state), sequence.n, f_.D, block, states);
      for (std::int64_t c = 0; c + 1 < count; ++c, states += D) {
        pass_on(block.columns, total(c), states, states + D);
      }
    }
    if (!needs_gradients_) return;
    Real* gradients = gradients_.data() + first + count * D;
    read_state(as<Real>(p_.d_final_state), sequence.n, f_.D, block, gradients);
    for (std::int64_t c = count - 1; c > 0; --c, gradients -= D) {
      pass_on(block.columns, total(c), gradients, gradients - D);
    }
    if (count == 0) write_d_initial_state(sequence, block, gradients);
  }

  void write_d_initial_state(const Sequence& sequence, ScanBlock block, const Real* d) const {
    if (!p_.d_initial_state) return;
    std::copy_n(d, block.columns, as<Real>(p_.d_initial_state) + sequence.n * f_.D + block.first);
  }

  /// Computes a tile's gradients, from the slots around it.
  void differentiate(const ScanTile& tile, int thread) {
    Scratch& s = scratch_[thread];
    const TileShape shape = tile.shape();
    load_decays(f_, tile, s.decay);
    load_d_out(tile, s);
    if (needs_states_) {
      load_x_(tile, thread, s.x);
      std::copy_n(states_.data() + at(tile), shape.columns, s.states);
      scan_states(shape, s.decay, s.x, s.states);
    }
    if (p_.d_gate.data) {
      differentiate_gate(shape, s.gate, s.states + kScanColumns, s.d_out, s.x);
      store_tile(f_.dtype, s.x, tile, p_.d_gate);
    }
    if (!needs_gradients_) return;
    std::copy_n(gradients_.data() + at(tile) + f_.D, shape.columns, s.carry);
    scan_gradients(shape, s.decay, s.d_states, s.carry);
    if (dx_.data) store_tile(dx_dtype_, s.d_states, tile, dx_);
    if (p_.d_decay.data) {
      if (f_.log_decay) {
        differentiate_log_decay(shape, s.decay, s.states, s.d_states, s.x);
      } else {
        differentiate_decay(shape, s.states, s.d_states, s.x);
      }
      store_tile(f_.decay_dtype, s.x, tile, p_.d_decay);
    }
    if (tile.chunk.opens_sequence()) {
      write_d_initial_state(*tile.chunk.sequence, tile.block, s.carry);
    }
  }

  const ScanRecurrence& f_;
  const ScanGradients& p_;
  TokenTensor dx_;
  DType dx_dtype_;
  const LoadX& load_x_;
  ScanChunks chunks_;
  // Whether some gradient needs the forward's states, or the gradients by them.
  bool needs_states_ = p_.d_decay.data || p_.d_gate.data;
  bool needs_gradients_ = dx_.data || p_.d_decay.data || p_.d_initial_state;
  // Values in slots, [slots][D].
  std::vector<Real> totals_;      // of the decay over the chunk after the slot
  std::vector<Real> states_;      // when the problem needs them
  std::vector<Real> gradients_;   // by the states, when the problem needs them
  std::vector<Scratch> scratch_;  // of each thread
};

}  // namespace tandem::cpu
