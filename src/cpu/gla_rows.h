// How gla's work is cut on the CPU: rows (one sequence and head) and their chunks.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "cpu/decay.h"
#include "cpu/parallel.h"
#include "ops/gla_problem.h"

namespace tandem::cpu {

/// One sequence and head.
struct GlaRow {
  std::int64_t n;
  int h;
  std::int64_t b;
  std::int64_t begin;
  std::int64_t end;

  std::int64_t chunks() const { return (end - begin + kChunk - 1) / kChunk; }
};

/// At most 64 consecutive tokens of a row.
struct GlaChunk {
  const GlaRow* row;
  std::int64_t begin;
  int length;
};

inline GlaChunk chunk_of(const GlaRow& row, std::int64_t index) {
  const std::int64_t begin = row.begin + index * kChunk;
  return {&row, begin, static_cast<int>(std::min<std::int64_t>(kChunk, row.end - begin))};
}

/// Chunks or segments per thread that one loop takes before the next one takes what they gave: few
/// enough that a thread finds its own in its cache, enough that threads end at about the same time.
constexpr int kWavePerThread = 8;

/// Calls pass(row, begin, count) for elements [begin, begin + count) of each row's state of `size`
/// elements, whose slices the threads share.
template <typename Pass>
void for_each_slice(std::int64_t rows, std::int64_t size, int threads, const Pass& pass) {
  constexpr std::int64_t kSlice = 1024;  // elements
  const std::int64_t slices = (size + kSlice - 1) / kSlice;
  parallel_for(rows * slices, threads, Schedule::kStatic, [&](std::int64_t i, int) {
    const std::int64_t begin = i % slices * kSlice;
    pass(i / slices, begin, std::min(kSlice, size - begin));
  });
}

/// Throws InvalidArgument in the name of `op` for cu_seqlens that decrease or leave [0,T].
void check_cu_seqlens(const char* op, const GlaRecurrence& recurrence);

/// Returns every sequence and head, by sequences, then heads. After check_cu_seqlens.
std::vector<GlaRow> gla_rows(const GlaRecurrence& recurrence);

/// Writes zeros to `tensor` [B,T,heads,dim] at tokens outside every sequence.
void clear_outside(const GlaRecurrence& recurrence, const StridedTensor& tensor, int heads,
                   int dim);

}  // namespace tandem::cpu
