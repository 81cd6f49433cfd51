// How gla's backward is cut: into segments of 16 chunks, with the state before each and the
// gradient by the state after it.
//
// The states and the gradients by them are serial in time, in opposite directions. Every segment's
// own contribution to both is computed first, all in parallel; a short pass over the segments adds
// them up; from there each segment is on its own (cpu/gla_backward_walk.h). Segments and sums do
// not depend on the number of threads, so neither do the bits.
//
// Memory: 2 K V floats per segment, which at K = V <= 256 is at most a tensor of the size of q.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "cpu/gla_backward_chunk.h"
#include "cpu/gla_rows.h"
#include "cpu/parallel.h"
#include "ops/gla_problem.h"

namespace tandem::cpu {

constexpr std::int64_t kGradientSegment = 16;  // chunks

/// Consecutive chunks of a row.
struct GlaSegment {
  const GlaRow* row;
  std::int64_t first;  // chunk of the row
  std::int64_t chunks;

  GlaChunk chunk(std::int64_t index) const { return chunk_of(*row, first + index); }
  bool opens_row() const { return first == 0; }
  bool ends_row() const { return first + chunks == row->chunks(); }
};

/// All segments, row after row, with the states before them and the gradients by those after them.
template <typename Operand>
class GlaBackwardSegments {
  using Real = RealOf<Operand>;

 public:
  GlaBackwardSegments(const GlaBackwardProblem& problem, const GlaBackwardSteps<Operand>& steps)
      : p_(problem), steps_(steps), size_(steps.state_size()), rows_(gla_rows(problem.forward)) {
    for (const GlaRow& row : rows_) {
      first_segment_.push_back(count());
      for (std::int64_t c = 0; c < row.chunks(); c += kGradientSegment) {
        segments_.push_back({&row, c, std::min(kGradientSegment, row.chunks() - c)});
      }
    }
    first_segment_.push_back(count());
    if (p_.needs_states()) states_.resize(count() * size_);
    if (p_.needs_state_gradients()) d_states_.resize(count() * size_);
    totals_.resize(count());
  }

  std::int64_t count() const { return std::ssize(segments_); }
  const GlaSegment& operator[](std::int64_t index) const { return segments_[index]; }

  /// Returns the index of the segment at the same place in the row of the head `heads` further on.
  std::int64_t of_next_head(std::int64_t index, int heads) const {
    const std::int64_t row = segments_[index].row - rows_.data();
    return first_segment_[row + heads] + (index - first_segment_[row]);
  }

  /// Returns the state before a segment, when the problem needs states.
  const Real* state(std::int64_t index) const { return states_.data() + index * size_; }
  /// Returns the gradient by the state after a segment, when the problem needs those.
  const Real* d_state(std::int64_t index) const { return d_states_.data() + index * size_; }

  /// Computes states and gradients by them, and writes the gradients by the initial states of rows
  /// without tokens. Thread i works in scratch_of(i).
  template <typename ScratchOf>
  void compute(int threads, const ScratchOf& scratch_of) {
    const bool cut = std::any_of(segments_.begin(), segments_.end(),
                                 [](const GlaSegment& segment) { return !segment.opens_row(); });
    // why: starting the threads takes longer than a short pass.
    const int pass_threads = cut ? parallel_threads() : 1;
    if (cut) {
      parallel_for(count(), threads, Schedule::kDynamic,
                   [&](std::int64_t i, int thread) { sum_segment(i, scratch_of(thread)); });
    }
    for_each_slice(std::ssize(rows_), size_, pass_threads,
                   [&](std::int64_t row, std::int64_t begin, std::int64_t size) {
                     pass_row(row, begin, size);
                   });
  }

 private:
  /// Sums the segment's own contributions to the state after it and to the gradient before it, kept
  /// where the neighbours find them, and its decay.
  void sum_segment(std::int64_t index, GlaBackwardScratch<Operand>& s) {
    const GlaSegment& segment = segments_[index];
    const bool sums_states = p_.needs_states() && !segment.ends_row();
    const bool sums_gradients = p_.needs_state_gradients() && !segment.opens_row();
    if (!sums_states && !sums_gradients) return;
    Real* state = sums_states ? states_.data() + (index + 1) * size_ : nullptr;
    Real* d_state = sums_gradients ? d_states_.data() + (index - 1) * size_ : nullptr;
    Real total = 1;  // decay over the chunks so far
    for (std::int64_t c = 0; c < segment.chunks; ++c) {
      steps_.load(segment.chunk(c), s);
      const Real decay = s.forward.decay.total;
      if (sums_states) {
        steps_.compute_update(s.forward, s.update.data());
        update_state(decay, s.update.data(), size_, state);
      }
      if (sums_gradients && total != 0) {
        steps_.compute_gradient_update(s, s.update.data());
        add_decayed(total, s.update.data(), size_, d_state);
      }
      total *= decay;
    }
    totals_[index] = total;
  }

  /// Passes elements [begin, begin + size) of a row's states and gradients on from segment to
  /// segment.
  void pass_row(std::int64_t index, std::int64_t begin, std::int64_t size) {
    const GlaRow& row = rows_[index];
    const std::int64_t first = first_segment_[index], end = first_segment_[index + 1];
    const std::int64_t offset = (row.n * p_.forward.H + row.h) * size_ + begin;
    if (p_.needs_states() && first < end) {
      Real* state = states_.data() + first * size_ + begin;
      steps_.read_initial_state(row, begin, size, state);
      for (std::int64_t i = first + 1; i < end; ++i, state += size_) {
        add_decayed(totals_[i - 1], state, size, state + size_);
      }
    }
    if (!p_.needs_state_gradients()) return;
    const auto read_final = [&](Real* to) {
      if (p_.d_final_state) {
        std::copy_n(as<Real>(p_.d_final_state) + offset, size, to);
      } else {
        std::fill_n(to, size, Real{0});
      }
    };
    if (first == end) {
      if (p_.d_initial_state) read_final(as<Real>(p_.d_initial_state) + offset);
      return;
    }
    Real* d_state = d_states_.data() + (end - 1) * size_ + begin;
    read_final(d_state);
    for (std::int64_t i = end - 1; i > first; --i, d_state -= size_) {
      add_decayed(totals_[i], d_state, size, d_state - size_);
    }
  }

  const GlaBackwardProblem& p_;
  const GlaBackwardSteps<Operand>& steps_;
  std::int64_t size_;
  std::vector<GlaRow> rows_;
  std::vector<GlaSegment> segments_;
  std::vector<std::int64_t> first_segment_;  // of each row, and past the last
  std::vector<Real> states_;                 // [segments][K,V], before each
  std::vector<Real> d_states_;               // [segments][K,V], by the state after each
  std::vector<Real> totals_;                 // of the decay over each segment
};

}  // namespace tandem::cpu
