// gla_state_forward on the CPU. Rows are cut into segments of 512 tokens; a thread walks a segment
// chunk by chunk (gla_chunk.h) from a state of 0, and the states of a row's segments are combined
// in their order, S = exp(total) * S + S_segment. The cuts do not depend on the number of threads,
// and so the bits do not either.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <memory>
#include <vector>

#include "cpu/gla_chunk.h"
#include "cpu/parallel.h"
#include "ops/gla.h"

namespace tandem::cpu {
namespace {

constexpr std::int64_t kSegmentTokens = 8 * kChunk;

struct Segment {
  GlaRow tokens;  // some tokens of a row
  bool first;     // whether it begins its row
  double total_log_decay = 0;
};

/// Cuts rows into segments; a row without tokens has one empty segment.
std::vector<Segment> segments_of(const std::vector<GlaRow>& rows) {
  std::vector<Segment> segments;
  for (const GlaRow& row : rows) {
    GlaRow segment = row;
    do {
      segment.end = std::min(row.end, segment.begin + kSegmentTokens);
      segments.push_back({segment, segment.begin == row.begin});
      segment.begin = segment.end;
    } while (segment.begin < row.end);
  }
  return segments;
}

template <typename Operand>
class SegmentWalk {
 public:
  SegmentWalk(const GlaStateForwardProblem& problem, MatmulProvider provider)
      : p_(problem),
        steps_(problem, provider),
        size_(steps_.state_size()),
        segments_(segments_of(gla_rows(problem))),
        threads_(parallel_threads()),
        most_(std::min<std::int64_t>(kWavePerThread * threads_, std::ssize(segments_))),
        states_(std::make_unique_for_overwrite<Real[]>(most_ * size_)) {
    for (int i = 0; i < threads_; ++i) {
      scratch_.push_back(steps_.make_scratch());
      updates_.emplace_back(size_);
    }
  }

  void run() {
    for (std::int64_t first = 0; first < std::ssize(segments_); first += most_) {
      const std::int64_t count = std::min(most_, std::ssize(segments_) - first);
      Segment* wave = segments_.data() + first;
      parallel_for(count, threads_, Schedule::kDynamic, [&](std::int64_t i, int thread) {
        walk(wave[i], wave[i].first ? state_of(wave[i]) : states_.get() + i * size_, thread);
      });
      for_each_slice(1, size_, threads_, [&](std::int64_t, std::int64_t begin, std::int64_t size) {
        combine(wave, count, begin, size);
      });
    }
    write_totals();
  }

 private:
  using Real = RealOf<Operand>;

  Real* state_of(const Segment& segment) const {
    return as<Real>(p_.state) + (segment.tokens.n * p_.H + segment.tokens.h) * size_;
  }

  /// Computes the segment's own end state and total log-decay.
  void walk(Segment& segment, Real* state, int thread) {
    const GlaRow& tokens = segment.tokens;
    GlaScratch<Operand>& s = scratch_[thread];
    Real* update = updates_[thread].data();
    if (tokens.chunks() == 0) std::fill_n(state, size_, Real{0});
    for (std::int64_t c = 0; c < tokens.chunks(); ++c) {
      steps_.load(chunk_of(tokens, c), s);
      if (c + 1 < tokens.chunks()) steps_.prefetch(chunk_of(tokens, c + 1));
      steps_.compute_update(s, c == 0 ? state : update);
      if (c > 0) update_state(s.decay.total, update, size_, state);
    }
    segment.total_log_decay = sum_log_decay(steps_.log_decay_at(tokens, tokens.begin),
                                            p_.log_decay.time_stride, tokens.end - tokens.begin);
  }

  /// Combines elements [begin, begin + size) of the states, from segment to segment.
  void combine(const Segment* wave, std::int64_t count, std::int64_t begin,
               std::int64_t size) const {
    for (std::int64_t i = 0; i < count; ++i) {
      if (wave[i].first) continue;
      const auto total = static_cast<Real>(std::exp(wave[i].total_log_decay));
      update_state(total, states_.get() + i * size_ + begin, size, state_of(wave[i]) + begin);
    }
  }

  void write_totals() const {
    double total = 0;
    for (const Segment& segment : segments_) {
      total = segment.total_log_decay + (segment.first ? 0 : total);
      const GlaRow& row = segment.tokens;
      as<Real>(p_.total_log_decay)[row.n * p_.H + row.h] = static_cast<Real>(total);
    }
  }

  const GlaStateForwardProblem& p_;
  GlaUpdateSteps<Operand> steps_;
  std::int64_t size_;  // of a state
  std::vector<Segment> segments_;
  int threads_;
  std::int64_t most_;               // segments of a wave
  std::unique_ptr<Real[]> states_;  // [most][K,V], of segments that are not the first of a row
  std::vector<GlaScratch<Operand>> scratch_;
  std::vector<std::vector<Real>> updates_;
};

}  // namespace

void gla_state_forward(const GlaStateForwardProblem& problem, const CallOptions& options) {
  check_cu_seqlens("gla_state_forward", problem);
  run_with_operands(options, problem.dtype, [&]<typename Operand>(MatmulProvider provider) {
    SegmentWalk<Operand>(problem, provider).run();
  });
}

}  // namespace tandem::cpu
