// gla on the CPU: chunks of 64 tokens, matrix products inside a chunk, the state from chunk to
// chunk.
//
// The steps of a chunk are in gla_chunk.h; of these only S = total * S + U is serial. Two walks
// share them and give the same bits: by rows (a row is one sequence and head; a thread walks it to
// its end), and, where there are too few or too uneven rows for the cores, by waves of chunks: all
// updates of a wave in parallel, then the states, then all outputs.
#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "cpu/gla_chunk.h"
#include "cpu/parallel.h"
#include "ops/gla.h"

namespace tandem::cpu {
namespace {

/// Walks by rows: a thread walks a row to its end. `rows` are sorted, the longest first.
template <typename Operand>
void walk_rows(const GlaChunkSteps<Operand>& steps, const std::vector<GlaRow>& rows, int threads) {
  const std::int64_t size = steps.state_size();
  using Real = RealOf<Operand>;
  struct ThreadState {
    std::vector<Real> state, update;
    std::vector<Operand> copy;
  };
  std::vector<GlaScratch<Operand>> scratch;
  std::vector<ThreadState> states;
  for (int i = 0; i < threads; ++i) {
    scratch.push_back(steps.make_scratch());
    states.push_back(
        {std::vector<Real>(size), std::vector<Real>(size), std::vector<Operand>(size)});
  }
  parallel_for(std::ssize(rows), threads, Schedule::kDynamic, [&](std::int64_t i, int thread) {
    GlaScratch<Operand>& s = scratch[thread];
    auto& [state, update, copy] = states[thread];
    steps.read_initial_state(rows[i], 0, size, state.data());
    for (std::int64_t c = 0; c < rows[i].chunks(); ++c) {
      const GlaChunk chunk = chunk_of(rows[i], c);
      steps.load(chunk, s);
      if (c + 1 < rows[i].chunks()) steps.prefetch(chunk_of(rows[i], c + 1));
      steps.write_saved_state(chunk, 0, size, state.data());
      steps.write_output(chunk, steps.as_operand(state.data(), size, copy.data()), s);
      steps.compute_update(s, update.data());
      update_state(s.decay.total, update.data(), size, state.data());
    }
    steps.write_final_state(rows[i], 0, size, state.data());
  });
}

/// Walks by waves of chunks, in the order of the rows.
template <typename Operand>
class WaveWalk {
 public:
  WaveWalk(const GlaChunkSteps<Operand>& steps, const std::vector<GlaRow>& rows, int threads)
      : steps_(steps), threads_(threads), size_(steps.state_size()), state_(size_) {
    for (const GlaRow& row : rows) {
      for (std::int64_t c = 0; c < row.chunks(); ++c) chunks_.push_back(chunk_of(row, c));
    }
    most_ = std::min<std::int64_t>(kWavePerThread * threads, std::ssize(chunks_));
    updates_.resize(most_ * size_);
    states_.resize(most_ * size_);
    totals_.resize(most_);
    for (int i = 0; i < threads; ++i) scratch_.push_back(steps.make_scratch());
  }

  void run() {
    for (std::int64_t first = 0; first < std::ssize(chunks_); first += most_) {
      const std::int64_t count = std::min(most_, std::ssize(chunks_) - first);
      const GlaChunk* wave = chunks_.data() + first;
      parallel_for(count, threads_, Schedule::kStatic, [&](std::int64_t i, int thread) {
        steps_.load(wave[i], scratch_[thread]);
        steps_.compute_update(scratch_[thread], updates_.data() + i * size_);
        totals_[i] = scratch_[thread].decay.total;
      });
      for_each_slice(1, size_, threads_, [&](std::int64_t, std::int64_t begin, std::int64_t size) {
        pass_states(wave, count, begin, size);
      });
      parallel_for(count, threads_, Schedule::kStatic, [&](std::int64_t i, int thread) {
        steps_.load(wave[i], scratch_[thread]);
        steps_.write_output(wave[i], states_.data() + i * size_, scratch_[thread]);
      });
    }
  }

 private:
  using Real = RealOf<Operand>;

  /// Passes elements [begin, begin + size) of the state on from chunk to chunk.
  void pass_states(const GlaChunk* wave, std::int64_t count, std::int64_t begin,
                   std::int64_t size) {
    Real* state = state_.data() + begin;
    for (std::int64_t i = 0; i < count; ++i) {
      const GlaRow& row = *wave[i].row;
      if (wave[i].begin == row.begin) steps_.read_initial_state(row, begin, size, state);
      steps_.write_saved_state(wave[i], begin, size, state);
      steps_.round_state(state, size, states_.data() + i * size_ + begin);
      update_state(totals_[i], updates_.data() + i * size_ + begin, size, state);
      if (wave[i].begin + wave[i].length == row.end) {
        steps_.write_final_state(row, begin, size, state);
      }
    }
  }

  const GlaChunkSteps<Operand>& steps_;
  int threads_;
  std::int64_t size_;
  std::int64_t most_ = 0;  // chunks of a wave
  std::vector<GlaChunk> chunks_;
  std::vector<Real> state_;      // of the row that the wave is in
  std::vector<Real> updates_;    // [most][K,V]
  std::vector<Operand> states_;  // [most][K,V], before each chunk
  std::vector<Real> totals_;
  std::vector<GlaScratch<Operand>> scratch_;
};

/// Whether rows keep all threads busy nearly to the end.
bool rows_fill(const std::vector<GlaRow>& rows, int threads) {
  constexpr double kWaveCost = 1.2;  // a wave's extra passes, measured
  std::vector<std::int64_t> loads;
  loads.reserve(rows.size());
  for (const GlaRow& row : rows) loads.push_back(row.chunks());
  return fills_threads(loads, threads, kWaveCost);
}

template <typename Operand>
void run(const GlaForwardProblem& problem, MatmulProvider provider) {
  std::vector<GlaRow> rows = gla_rows(problem);
  std::stable_sort(rows.begin(), rows.end(),
                   [](const GlaRow& a, const GlaRow& b) { return a.chunks() > b.chunks(); });
  const GlaChunkSteps<Operand> steps(problem, provider);
  const int threads = parallel_threads();
  if (threads == 1 || problem.T <= kChunk || rows_fill(rows, threads)) {
    walk_rows(steps, rows, static_cast<int>(std::min<std::int64_t>(threads, std::ssize(rows))));
    return;
  }
  WaveWalk(steps, rows, threads).run();
  for (const GlaRow& row : rows) {
    if (row.chunks() == 0) steps.copy_state(row);
  }
}

}  // namespace

void gla_forward(const GlaForwardProblem& problem, const CallOptions& options) {
  check_cu_seqlens("gla_forward", problem);
  run_with_operands(options, problem.dtype, [&]<typename Operand>(MatmulProvider provider) {
    clear_outside(problem, problem.o, problem.H, problem.V);
    run<Operand>(problem, provider);
  });
}

std::vector<VariantInfo> gla_variants() {
  const std::string onednn = matmul_unavailable_reason(MatmulProvider::kOneDnn);
  return {{"gla", "gla_forward.cpu.onednn", onednn},
          {"gla", "gla_forward.cpu.builtin", ""},
          {"gla", "gla_state_forward.cpu.onednn", onednn},
          {"gla", "gla_state_forward.cpu.builtin", ""},
          {"gla", "gla_backward.cpu.onednn", onednn},
          {"gla", "gla_backward.cpu.builtin", ""},
          {"gla", "gla_state_backward.cpu.onednn", onednn},
          {"gla", "gla_state_backward.cpu.builtin", ""}};
}

}  // namespace tandem::cpu
