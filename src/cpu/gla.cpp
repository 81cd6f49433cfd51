// gla on the CPU: chunks of 64 tokens, matrix products inside a chunk, the state from chunk to
// chunk.
//
// The steps of a chunk are in gla_chunk.h; of these only S = total * S + U is serial. Two walks
// share them and give the same bits: by rows (a row is one sequence and head; a thread walks it to
// its end), and, where there are too few or too uneven rows for the cores, by waves of chunks: all
// updates of a wave in parallel, then the states, then all outputs.
#include <algorithm>
#include <cstdint>
#include <functional>
#include <queue>
#include <string>
#include <vector>

#include "core/check.h"
#include "cpu/gla_chunk.h"
#include "cpu/parallel.h"
#include "ops/gla.h"

namespace tandem::cpu {
namespace {

constexpr int kWavePerThread = 8;  // chunks: what a thread made in one loop it finds in its cache
constexpr std::int64_t kSlice = 1024;  // elements of the state

/// A thread walks a row to its end. `rows` are sorted, the longest first.
template <typename Operand>
void walk_rows(const GlaChunkSteps<Operand>& steps, const std::vector<GlaRow>& rows, int threads) {
  const std::int64_t size = steps.state_size();
  struct ThreadState {
    std::vector<float> state, update;
    std::vector<Operand> copy;
  };
  std::vector<GlaScratch<Operand>> scratch;
  std::vector<ThreadState> states;
  for (int i = 0; i < threads; ++i) {
    scratch.push_back(steps.make_scratch());
    states.push_back(
        {std::vector<float>(size), std::vector<float>(size), std::vector<Operand>(size)});
  }
  parallel_for(std::ssize(rows), threads, Schedule::kDynamic, [&](std::int64_t i, int thread) {
    GlaScratch<Operand>& s = scratch[thread];
    auto& [state, update, copy] = states[thread];
    steps.read_initial_state(rows[i], 0, size, state.data());
    for (std::int64_t c = 0; c < rows[i].chunks(); ++c) {
      const GlaChunk chunk = chunk_of(rows[i], c);
      steps.load(chunk, s);
      if (c + 1 < rows[i].chunks()) steps.prefetch(chunk_of(rows[i], c + 1));
      steps.write_output(chunk, steps.as_operand(state.data(), size, copy.data()), s);
      steps.compute_update(s, update.data());
      update_state(s.decay.total, update.data(), size, state.data());
    }
    steps.write_final_state(rows[i], 0, size, state.data());
  });
}

/// Waves of chunks, in the order of the rows.
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
      const std::int64_t slices = (size_ + kSlice - 1) / kSlice;
      parallel_for(slices, threads_, Schedule::kStatic, [&](std::int64_t slice, int) {
        const std::int64_t begin = slice * kSlice;
        pass_states(wave, count, begin, std::min(kSlice, size_ - begin));
      });
      parallel_for(count, threads_, Schedule::kStatic, [&](std::int64_t i, int thread) {
        steps_.load(wave[i], scratch_[thread]);
        steps_.write_output(wave[i], states_.data() + i * size_, scratch_[thread]);
      });
    }
  }

 private:
  /// Elements [begin, begin + size) of the state, from chunk to chunk.
  void pass_states(const GlaChunk* wave, std::int64_t count, std::int64_t begin,
                   std::int64_t size) {
    float* state = state_.data() + begin;
    for (std::int64_t i = 0; i < count; ++i) {
      const GlaRow& row = *wave[i].row;
      if (wave[i].begin == row.begin) steps_.read_initial_state(row, begin, size, state);
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
  std::vector<float> state_;     // of the row that the wave is in
  std::vector<float> updates_;   // [most][K,V]
  std::vector<Operand> states_;  // [most][K,V], before each chunk
  std::vector<float> totals_;
  std::vector<GlaScratch<Operand>> scratch_;
};

/// Throws for cu_seqlens that decrease or leave [0,T].
void check_cu_seqlens(const GlaForwardProblem& p) {
  if (!p.cu_seqlens) return;
  std::int64_t previous = 0;
  for (std::int64_t i = 0; i <= p.N; ++i) {
    const std::int64_t value = p.cu_seqlens[i];
    const std::string got = "got cu_seqlens[" + std::to_string(i) + "] = " + std::to_string(value);
    if (value < 0 || value > p.T) {
      refuse("gla_forward",
             "cu_seqlens must lie in [0,T] = [0," + std::to_string(p.T) + "], " + got);
    }
    if (value < previous) {
      refuse("gla_forward",
             "cu_seqlens must not decrease, " + got + " after " + std::to_string(previous));
    }
    previous = value;
  }
}

/// The longest first.
std::vector<GlaRow> rows_of(const GlaForwardProblem& p) {
  std::vector<GlaRow> rows;
  for (std::int64_t n = 0; n < p.N; ++n) {
    const std::int64_t begin = p.cu_seqlens ? p.cu_seqlens[n] : 0;
    const std::int64_t end = p.cu_seqlens ? p.cu_seqlens[n + 1] : p.T;
    for (int h = 0; h < p.H; ++h) rows.push_back({n, h, p.cu_seqlens ? 0 : n, begin, end});
  }
  std::stable_sort(rows.begin(), rows.end(), [](const GlaRow& a, const GlaRow& b) {
    return a.end - a.begin > b.end - b.begin;
  });
  return rows;
}

/// Whether rows, handed to whichever thread is free, keep all threads busy nearly to the end.
bool rows_fill(const std::vector<GlaRow>& rows, int threads) {
  std::priority_queue<std::int64_t, std::vector<std::int64_t>, std::greater<>> loads;
  for (int i = 0; i < threads; ++i) loads.push(0);
  std::int64_t total = 0, longest = 0;
  for (const GlaRow& row : rows) {
    const std::int64_t load = loads.top() + row.chunks();
    loads.pop();
    loads.push(load);
    longest = std::max(longest, load);
    total += row.chunks();
  }
  constexpr double kWaveCost = 1.2;  // a wave's extra passes, measured
  return static_cast<double>(longest) * threads <= kWaveCost * static_cast<double>(total);
}

template <typename Operand>
void run(const GlaForwardProblem& problem, MatmulProvider provider) {
  const std::vector<GlaRow> rows = rows_of(problem);
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

/// o is 0 at tokens outside every sequence.
void clear_outside(const GlaForwardProblem& p) {
  if (!p.cu_seqlens) return;
  const auto clear = [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t t = begin; t < end; ++t) {
      void* row = element_at(p.dtype, p.o.data, t * p.o.time_stride);
      fill_rows_with_zero(p.H, p.V, {p.dtype, row, p.o.head_stride});
    }
  };
  clear(0, p.cu_seqlens[0]);
  clear(p.cu_seqlens[p.N], p.T);
}

}  // namespace

void gla_forward(const GlaForwardProblem& problem) {
  check_cu_seqlens(problem);
  const MatmulProvider provider = default_matmul_provider();
  isa();  // throws before anything is written
  clear_outside(problem);
  if (problem.dtype == DType::kBFloat16 && matmul_prefers_bf16(provider)) {
    run<BFloat16>(problem, provider);
  } else {
    run<float>(problem, provider);
  }
}

std::vector<VariantInfo> gla_variants() {
  return {{"gla", "gla_forward.cpu.onednn", matmul_unavailable_reason(MatmulProvider::kOneDnn)},
          {"gla", "gla_forward.cpu.builtin", ""}};
}

}  // namespace tandem::cpu
