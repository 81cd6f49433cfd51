// How gla's backward walks its chunks: in segments of 16.
//
// The states and the gradients by them are serial in time, in opposite directions. Every segment's
// own contribution to both is computed first, all in parallel; a short pass over the segments adds
// them up; then each segment is on its own: it recomputes its states from the one at its begin and
// walks its chunks backwards (cpu/gla_backward_chunk.h). Segments and sums do not depend on the
// number of threads, so neither do the bits.
//
// Memory: 2 K V floats per segment, which at K = V <= 256 is at most a tensor of the size of q.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "cpu/gla_backward_chunk.h"
#include "cpu/gla_rows.h"
#include "cpu/parallel.h"
#include "ops/gla.h"

namespace tandem::cpu {

constexpr std::int64_t kGradientSegment = 16;  // chunks

/// Part of a row.
struct GlaSegment {
  const GlaRow* row;
  std::int64_t first;  // chunk of the row
  std::int64_t chunks;

  GlaChunk chunk(std::int64_t index) const { return chunk_of(*row, first + index); }
  bool opens_row() const { return first == 0; }
  bool ends_row() const { return first + chunks == row->chunks(); }
};

template <typename Operand>
class GlaBackwardWalk {
 public:
  GlaBackwardWalk(const GlaBackwardProblem& problem, MatmulProvider provider)
      : p_(problem),
        f_(problem.forward),
        steps_(problem, provider),
        size_(steps_.state_size()),
        group_(f_.H / f_.HQ),
        rows_(gla_rows(f_)) {
    for (const GlaRow& row : rows_) {
      first_segment_.push_back(std::ssize(segments_));
      for (std::int64_t c = 0; c < row.chunks(); c += kGradientSegment) {
        segments_.push_back({&row, c, std::min(kGradientSegment, row.chunks() - c)});
      }
    }
    first_segment_.push_back(std::ssize(segments_));
    if (p_.needs_states()) states_.resize(segments_.size() * size_);
    if (p_.needs_state_gradients()) d_states_.resize(segments_.size() * size_);
    totals_.resize(segments_.size());
    decay_sums_.resize(segments_.size());
    threads_ =
        static_cast<int>(std::clamp<std::int64_t>(std::ssize(segments_), 1, parallel_threads()));
    for (int i = 0; i < threads_; ++i) workers_.emplace_back(steps_, size_, f_.K, p_, group_);
  }

  void run() {
    const bool cut = std::any_of(segments_.begin(), segments_.end(),
                                 [](const GlaSegment& segment) { return !segment.opens_row(); });
    // why: starting the threads takes longer than a short pass.
    const int pass_threads = cut ? parallel_threads() : 1;
    if (cut) {
      parallel_for(std::ssize(segments_), threads_, Schedule::kDynamic,
                   [&](std::int64_t i, int thread) { sum_segment(i, workers_[thread]); });
    }
    const std::int64_t slices = (size_ + kSlice - 1) / kSlice;
    parallel_for(std::ssize(rows_) * slices, pass_threads, Schedule::kStatic,
                 [&](std::int64_t i, int) {
                   const std::int64_t begin = i % slices * kSlice;
                   pass_row(i / slices, begin, std::min(kSlice, size_ - begin));
                 });
    // One item: a segment of all heads that share a query/key head, whose gradients add up in it.
    const bool every_token = p_.dq.data || p_.dk.data || p_.dv.data || p_.d_log_decay.data;
    std::vector<std::int64_t> items;
    for (std::int64_t i = 0; i < std::ssize(segments_); ++i) {
      if (segments_[i].row->h % group_ != 0) continue;
      if (every_token || segments_[i].opens_row()) items.push_back(i);
    }
    parallel_for(std::ssize(items), threads_, Schedule::kDynamic,
                 [&](std::int64_t i, int thread) { walk_group(items[i], workers_[thread]); });
    if (p_.d_log_decay.data && !p_.d_log_decay.per_token) write_constant_decay();
  }

 private:
  static constexpr std::int64_t kSlice = 1024;  // elements of the state

  /// What one thread works in.
  struct Worker {
    Worker(const GlaBackwardSteps<Operand>& steps, std::int64_t size, int K,
           const GlaBackwardProblem& p, int group)
        : scratch(steps.make_scratch()),
          states(p.needs_states() ? kGradientSegment * size : 0),
          d_state(size),
          update(size),
          state_copy(size),
          d_state_copy(size),
          dq(group > 1 && p.dq.data ? kGradientSegment * kChunk * K : 0),
          dk(group > 1 && p.dk.data ? kGradientSegment * kChunk * K : 0) {}

    GlaBackwardScratch<Operand> scratch;
    std::vector<float> states;   // [kGradientSegment][K,V], before each chunk of a segment
    std::vector<float> d_state;  // by the state after the chunk
    std::vector<float> update;
    std::vector<Operand> state_copy, d_state_copy;
    std::vector<float> dq, dk;  // of a segment, summed over the heads of a group
  };

  /// The segment's own contributions to the state after it and to the gradient before it, kept
  /// where the neighbours find them, and its decay.
  void sum_segment(std::int64_t index, Worker& w) {
    const GlaSegment& segment = segments_[index];
    const bool sums_states = p_.needs_states() && !segment.ends_row();
    const bool sums_gradients = p_.needs_state_gradients() && !segment.opens_row();
    if (!sums_states && !sums_gradients) return;
    float* state = sums_states ? states_.data() + (index + 1) * size_ : nullptr;
    float* d_state = sums_gradients ? d_states_.data() + (index - 1) * size_ : nullptr;
    float total = 1.0f;  // of the chunks so far
    for (std::int64_t c = 0; c < segment.chunks; ++c) {
      steps_.load(segment.chunk(c), w.scratch);
      const float decay = w.scratch.forward.decay.total;
      if (sums_states) {
        steps_.compute_update(w.scratch.forward, w.update.data());
        update_state(decay, w.update.data(), size_, state);
      }
      if (sums_gradients && total != 0.0f) {
        steps_.compute_gradient_update(w.scratch, w.update.data());
        add_decayed(total, w.update.data(), size_, d_state);
      }
      total *= decay;
    }
    totals_[index] = total;
  }

  /// Elements [begin, begin + size) of a row's states and gradients, from segment to segment.
  void pass_row(std::int64_t index, std::int64_t begin, std::int64_t size) {
    const GlaRow& row = rows_[index];
    const std::int64_t first = first_segment_[index], end = first_segment_[index + 1];
    const std::int64_t offset = (row.n * f_.H + row.h) * size_ + begin;
    if (p_.needs_states() && first < end) {
      float* state = states_.data() + first * size_ + begin;
      steps_.read_initial_state(row, begin, size, state);
      for (std::int64_t i = first + 1; i < end; ++i, state += size_) {
        add_decayed(totals_[i - 1], state, size, state + size_);
      }
    }
    if (!p_.needs_state_gradients()) return;
    const auto read_final = [&](float* to) {
      if (p_.d_final_state) {
        std::copy_n(p_.d_final_state + offset, size, to);
      } else {
        std::fill_n(to, size, 0.0f);
      }
    };
    if (first == end) {
      if (p_.d_initial_state) read_final(p_.d_initial_state + offset);
      return;
    }
    float* d_state = d_states_.data() + (end - 1) * size_ + begin;
    read_final(d_state);
    for (std::int64_t i = end - 1; i > first; --i, d_state -= size_) {
      add_decayed(totals_[i], d_state, size, d_state - size_);
    }
  }

  void walk_group(std::int64_t index, Worker& w) {
    const GlaSegment& segment = segments_[index];
    const std::int64_t row = segment.row - rows_.data();
    for (int member = 0; member < group_; ++member) {
      // The heads of a group are neighbours, with equally many segments each.
      walk_segment(first_segment_[row + member] + (index - first_segment_[row]), member, w);
    }
  }

  void walk_segment(std::int64_t index, int member, Worker& w) {
    const GlaSegment& segment = segments_[index];
    if (p_.needs_states()) recompute_states(segment, states_.data() + index * size_, w);
    if (p_.needs_state_gradients()) {
      std::copy_n(d_states_.data() + index * size_, size_, w.d_state.data());
    }
    double decay_sum = 0.0;
    for (std::int64_t c = segment.chunks - 1; c >= 0; --c) {
      decay_sum += walk_chunk(segment, c, member, w);
    }
    decay_sums_[index] = decay_sum;
    if (p_.d_initial_state && segment.opens_row()) {
      const GlaRow& row = *segment.row;
      std::copy_n(w.d_state.data(), size_, p_.d_initial_state + (row.n * f_.H + row.h) * size_);
    }
  }

  void recompute_states(const GlaSegment& segment, const float* first, Worker& w) {
    float* state = w.states.data();
    std::copy_n(first, size_, state);
    for (std::int64_t c = 0; c + 1 < segment.chunks; ++c, state += size_) {
      steps_.load(segment.chunk(c), w.scratch.forward);
      steps_.compute_update(w.scratch.forward, state + size_);
      add_decayed(w.scratch.forward.decay.total, state, size_, state + size_);
    }
  }

  /// Writes the gradients of a chunk, and moves w.d_state before it. Returns the sum over the
  /// chunk's dg.
  double walk_chunk(const GlaSegment& segment, std::int64_t c, int member, Worker& w) {
    const GlaChunk chunk = segment.chunk(c);
    GlaBackwardScratch<Operand>& s = w.scratch;
    const float* state = w.states.data() + c * size_;
    steps_.load(chunk, s);
    steps_.compute_weights(s);
    if (p_.needs_states()) {
      steps_.compute_dq(steps_.as_operand(state, size_, w.state_copy.data()), s);
    }
    if (p_.dk.data || p_.dv.data || p_.d_log_decay.data) {
      const Operand* d_state = steps_.as_operand(w.d_state.data(), size_, w.d_state_copy.data());
      if (p_.dk.data || p_.d_log_decay.data) steps_.compute_dk(d_state, s);
      if (p_.dv.data) steps_.compute_dv(d_state, s);
    }
    const int hq = chunk.row->h / group_;
    const std::int64_t at = c * kChunk * f_.K;
    if (p_.dq.data) write_shared(s.dq.data(), chunk, hq, member, p_.dq, at, w.dq);
    if (p_.dk.data) write_shared(s.dk.data(), chunk, hq, member, p_.dk, at, w.dk);
    if (p_.dv.data) write(s.dv.data(), f_.V, chunk, chunk.row->h, p_.dv);
    double decay_sum = 0.0;
    if (p_.d_log_decay.data) {
      float gradient[kChunk];
      steps_.compute_decay_gradient(state, w.d_state.data(), s, gradient);
      for (int t = 0; t < chunk.length; ++t) decay_sum += gradient[t];
      if (p_.d_log_decay.per_token) write_decay_gradient(gradient, chunk);
    }
    if (p_.needs_state_gradients() && (c > 0 || (segment.opens_row() && p_.d_initial_state))) {
      steps_.compute_gradient_update(s, w.update.data());
      update_state(s.forward.decay.total, w.update.data(), size_, w.d_state.data());
    }
    return decay_sum;
  }

  void write(const float* rows, int columns, const GlaChunk& chunk, int head,
             const StridedTensor& to) const {
    const std::int64_t offset =
        chunk.row->b * to.batch_stride + chunk.begin * to.time_stride + head * to.head_stride;
    rows_from_float(rows, columns, chunk.length, columns, 1.0f,
                    {f_.dtype, element_at(f_.dtype, to.data, offset), to.time_stride});
  }

  /// Rows of dq or dk, which the heads of a group share: summed at `sums[at]` in the order of the
  /// heads, written with the last.
  void write_shared(const float* rows, const GlaChunk& chunk, int hq, int member,
                    const StridedTensor& to, std::int64_t at, std::vector<float>& sums) const {
    if (group_ > 1) {
      update_state(member == 0 ? 0.0f : 1.0f, rows, std::int64_t{chunk.length} * f_.K, &sums[at]);
      rows = &sums[at];
    }
    if (member == group_ - 1) write(rows, f_.K, chunk, hq, to);
  }

  void write_decay_gradient(const float* gradient, const GlaChunk& chunk) const {
    const DecayGradient& to = p_.d_log_decay;
    float* out = to.data + chunk.row->b * to.batch_stride + chunk.begin * to.time_stride +
                 chunk.row->h * to.head_stride;
    for (int t = 0; t < chunk.length; ++t) out[t * to.time_stride] = gradient[t];
  }

  void write_constant_decay() const {
    for (int h = 0; h < f_.H; ++h) {
      double sum = 0.0;
      for (std::int64_t i = 0; i < std::ssize(segments_); ++i) {
        if (segments_[i].row->h == h) sum += decay_sums_[i];
      }
      p_.d_log_decay.data[h * p_.d_log_decay.head_stride] = static_cast<float>(sum);
    }
  }

  const GlaBackwardProblem& p_;
  const GlaForwardProblem& f_;
  GlaBackwardSteps<Operand> steps_;
  std::int64_t size_;
  int group_;  // heads that share a query/key head
  int threads_;
  std::vector<GlaRow> rows_;
  std::vector<GlaSegment> segments_;         // row after row
  std::vector<std::int64_t> first_segment_;  // of each row, and past the last
  std::vector<float> states_;                // [segments][K,V], before each
  std::vector<float> d_states_;              // [segments][K,V], by the state after each
  std::vector<float> totals_;                // of the decay over each segment
  std::vector<double> decay_sums_;           // over each segment's dg
  std::vector<Worker> workers_;
};

}  // namespace tandem::cpu
