// How gla's backward walks a segment (cpu/gla_backward_segments.h): it recomputes the segment's
// states from the one at its begin, then takes its chunks backwards (cpu/gla_backward_chunk.h) and
// writes their gradients.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "cpu/gla_backward_chunk.h"
#include "cpu/gla_backward_segments.h"
#include "cpu/gla_rows.h"
#include "cpu/parallel.h"
#include "ops/gla_problem.h"

namespace tandem::cpu {

template <typename Operand>
class GlaBackwardWalk {
  using Real = RealOf<Operand>;

 public:
  GlaBackwardWalk(const GlaBackwardProblem& problem, MatmulProvider provider)
      : p_(problem),
        f_(problem.forward),
        steps_(problem, provider),
        size_(steps_.state_size()),
        heads_per_key_(f_.H / f_.HQ),
        segments_(problem, steps_),
        decay_sums_(segments_.count()) {
    threads_ = static_cast<int>(std::clamp<std::int64_t>(segments_.count(), 1, parallel_threads()));
    for (int i = 0; i < threads_; ++i)
      workers_.emplace_back(steps_, size_, f_.K, p_, heads_per_key_);
  }

  void run() {
    segments_.compute(threads_, [&](int i) -> Scratch& { return workers_[i].scratch; });
    // An item is a segment of all heads of a head group, whose gradients by q and k add up in it.
    const bool every_token = p_.dq.data || p_.dk.data || p_.dv.data || p_.d_log_decay.data;
    std::vector<std::int64_t> items;
    for (std::int64_t i = 0; i < segments_.count(); ++i) {
      if (segments_[i].row->h % heads_per_key_ != 0) continue;
      if (every_token || segments_[i].opens_row()) items.push_back(i);
    }
    parallel_for(std::ssize(items), threads_, Schedule::kDynamic,
                 [&](std::int64_t i, int thread) { walk_head_group(items[i], workers_[thread]); });
    if (p_.d_log_decay.data && !p_.d_log_decay.per_token) write_constant_decay();
  }

 private:
  using Scratch = GlaBackwardScratch<Operand>;

  /// What one thread works in.
  struct Worker {
    Worker(const GlaBackwardSteps<Operand>& steps, std::int64_t size, int K,
           const GlaBackwardProblem& p, int heads_per_key)
        : scratch(steps.make_scratch()),
          states(p.needs_states() ? kGradientSegment * size : 0),
          d_state(size),
          state_copy(size),
          d_state_copy(size),
          dq(heads_per_key > 1 && p.dq.data ? kGradientSegment * kChunk * K : 0),
          dk(heads_per_key > 1 && p.dk.data ? kGradientSegment * kChunk * K : 0) {}

    Scratch scratch;
    std::vector<Real> states;   // [kGradientSegment][K,V], before each chunk of a segment
    std::vector<Real> d_state;  // by the state after the chunk
    std::vector<Operand> state_copy, d_state_copy;
    std::vector<Real> dq, dk;  // of a segment, summed over a head group
  };

  /// Walks the segment of a head group's first head, and those at the same place of its other
  /// heads.
  void walk_head_group(std::int64_t index, Worker& w) {
    for (int member = 0; member < heads_per_key_; ++member) {
      walk_segment(segments_.of_next_head(index, member), member, w);
    }
  }

  void walk_segment(std::int64_t index, int member, Worker& w) {
    const GlaSegment& segment = segments_[index];
    if (p_.needs_states()) recompute_states(segment, segments_.state(index), w);
    if (p_.needs_state_gradients()) {
      std::copy_n(segments_.d_state(index), size_, w.d_state.data());
    }
    double decay_sum = 0.0;
    for (std::int64_t c = segment.chunks - 1; c >= 0; --c) {
      decay_sum += walk_chunk(segment, c, member, w);
    }
    decay_sums_[index] = decay_sum;
    if (p_.d_initial_state && segment.opens_row()) {
      const GlaRow& row = *segment.row;
      std::copy_n(w.d_state.data(), size_,
                  as<Real>(p_.d_initial_state) + (row.n * f_.H + row.h) * size_);
    }
  }

  void recompute_states(const GlaSegment& segment, const Real* first, Worker& w) {
    Real* state = w.states.data();
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
    Scratch& s = w.scratch;
    const Real* state = w.states.data() + c * size_;
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
    const int hq = chunk.row->h / heads_per_key_;
    const std::int64_t at = c * kChunk * f_.K;
    if (p_.dq.data) write_shared(s.dq.data(), chunk, hq, member, p_.dq, at, w.dq);
    if (p_.dk.data) write_shared(s.dk.data(), chunk, hq, member, p_.dk, at, w.dk);
    if (p_.dv.data) write(s.dv.data(), f_.V, chunk, chunk.row->h, p_.dv);
    double decay_sum = 0.0;
    if (p_.d_log_decay.data) {
      Real gradient[kChunk];
      steps_.compute_decay_gradient(state, w.d_state.data(), s, gradient);
      for (int t = 0; t < chunk.length; ++t) decay_sum += gradient[t];
      if (p_.d_log_decay.per_token) write_decay_gradient(gradient, chunk);
    }
    if (p_.needs_state_gradients() && (c > 0 || (segment.opens_row() && p_.d_initial_state))) {
      steps_.compute_gradient_update(s, s.update.data());
      update_state(s.forward.decay.total, s.update.data(), size_, w.d_state.data());
    }
    return decay_sum;
  }

  void write(const Real* rows, int columns, const GlaChunk& chunk, int head,
             const StridedTensor& to) const {
    const std::int64_t offset =
        chunk.row->b * to.batch_stride + chunk.begin * to.time_stride + head * to.head_stride;
    rows_from_float(rows, columns, chunk.length, columns, 1.0f,
                    {f_.dtype, element_at(f_.dtype, to.data, offset), to.time_stride});
  }

  /// Adds rows of dq or dk up over a head group, at `sums[at]` in the order of the heads, and
  /// writes them with the last head.
  void write_shared(const Real* rows, const GlaChunk& chunk, int hq, int member,
                    const StridedTensor& to, std::int64_t at, std::vector<Real>& sums) const {
    if (heads_per_key_ > 1) {
      update_state(member == 0 ? Real{0} : Real{1}, rows, std::int64_t{chunk.length} * f_.K,
                   &sums[at]);
      rows = &sums[at];
    }
    if (member == heads_per_key_ - 1) write(rows, f_.K, chunk, hq, to);
  }

  void write_decay_gradient(const Real* gradient, const GlaChunk& chunk) const {
    const DecayGradient& to = p_.d_log_decay;
    Real* out = as<Real>(to.data) + chunk.row->b * to.batch_stride + chunk.begin * to.time_stride +
                chunk.row->h * to.head_stride;
    for (int t = 0; t < chunk.length; ++t) out[t * to.time_stride] = gradient[t];
  }

  void write_constant_decay() const {
    for (int h = 0; h < f_.H; ++h) {
      double sum = 0.0;
      for (std::int64_t i = 0; i < segments_.count(); ++i) {
        if (segments_[i].row->h == h) sum += decay_sums_[i];
      }
      as<Real>(p_.d_log_decay.data)[h * p_.d_log_decay.head_stride] = static_cast<Real>(sum);
    }
  }

  const GlaBackwardProblem& p_;
  const GlaForwardProblem& f_;
  GlaBackwardSteps<Operand> steps_;
  std::int64_t size_;
  int heads_per_key_;  // heads that share a query/key head
  GlaBackwardSegments<Operand> segments_;
  std::vector<double> decay_sums_;  // sum of each segment's dg
  int threads_;
  std::vector<Worker> workers_;
};

}  // namespace tandem::cpu
