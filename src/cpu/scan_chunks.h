// How a scan is cut on the CPU: sequences into chunks of 64 tokens, channels into blocks of 128; a
// tile is one of each.
//
// Between the chunks of a sequence lie its slots: the state, or the gradient by the state, before
// its first chunk, between two, and after its last. What crosses a chunk does so by one formula,
// after = total before + sum, so no walk's order, nor the number of threads, changes a bit.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "cpu/elementwise.h"
#include "cpu/scan_tile.h"
#include "cpu/sequences.h"
#include "ops/gated_scan_problem.h"

namespace tandem::cpu {

/// Tokens [begin, begin + rows) of a sequence. `slot` is the slot before them, slot + 1 the one
/// after.
struct ScanChunk {
  const Sequence* sequence;
  std::int64_t begin;
  int rows;
  std::int64_t slot;

  bool opens_sequence() const { return begin == sequence->begin; }
  bool ends_sequence() const { return begin + rows == sequence->end; }
};

/// Channels [first, first + columns).
struct ScanBlock {
  int first;
  int columns;
};

struct ScanTile {
  ScanChunk chunk;
  ScanBlock block;

  TileShape shape() const { return {chunk.rows, block.columns}; }
};

class ScanChunks {
 public:
  explicit ScanChunks(const ScanRecurrence& scan)
      : D_(scan.D), sequences_(sequences_of(scan.cu_seqlens, scan.N, scan.T)) {
    std::int64_t slot = 0;
    for (const Sequence& sequence : sequences_) {
      first_slot_.push_back(slot);
      for (std::int64_t t = sequence.begin; t < sequence.end; t += kScanRows, ++slot) {
        const auto rows = std::min<std::int64_t>(kScanRows, sequence.end - t);
        chunks_.push_back({&sequence, t, static_cast<int>(rows), slot});
      }
      ++slot;
    }
    slots_ = slot;
  }
  ScanChunks(const ScanChunks&) = delete;  // chunks point to sequences

  const std::vector<Sequence>& sequences() const { return sequences_; }
  const std::vector<ScanChunk>& all() const { return chunks_; }

  std::int64_t slots() const { return slots_; }
  std::int64_t first_slot(const Sequence& sequence) const { return first_slot_[sequence.n]; }
  static std::int64_t count(const Sequence& sequence) {
    return (sequence.end - sequence.begin + kScanRows - 1) / kScanRows;
  }
  /// Returns chunk i of a sequence.
  const ScanChunk& chunk(const Sequence& sequence, std::int64_t i) const {
    return chunks_[first_slot(sequence) - sequence.n +
                   i];  // a sequence has a slot more than chunks
  }

  int blocks() const { return (D_ - 1) / kScanColumns + 1; }
  ScanBlock block(std::int64_t i) const {
    const int first = static_cast<int>(i) * kScanColumns;
    return {first, std::min(kScanColumns, D_ - first)};
  }

 private:
  int D_;
  std::vector<Sequence> sequences_;
  std::vector<std::int64_t> first_slot_;  // of each sequence
  std::vector<ScanChunk> chunks_;
  std::int64_t slots_ = 0;
};

// Real below is what tiles are computed in (core/real.h).

/// Loads the tile of a [B,T,D] tensor.
template <typename Real>
void load_tile(DType dtype, const TokenTensor& from, const ScanTile& tile, Real* to) {
  const ScanChunk& chunk = tile.chunk;
  const std::int64_t at = chunk.sequence->b * from.batch_stride + chunk.begin * from.time_stride;
  rows_to_float({dtype, element_at(dtype, from.data, at + tile.block.first), from.time_stride},
                chunk.rows, tile.block.columns, to, kScanColumns);
}

template <typename Real>
void store_tile(DType dtype, const Real* from, const ScanTile& tile, const TokenTensor& to) {
  const ScanChunk& chunk = tile.chunk;
  const std::int64_t at = chunk.sequence->b * to.batch_stride + chunk.begin * to.time_stride;
  rows_from_float(from, kScanColumns, chunk.rows, tile.block.columns, 1.0f,
                  {dtype, element_at(dtype, to.data, at + tile.block.first), to.time_stride});
}

/// Loads the decays of a tile, exponentiated where their logs were given.
template <typename Real>
void load_decays(const ScanRecurrence& scan, const ScanTile& tile, Real* decay) {
  load_tile(scan.decay_dtype, scan.decay, tile, decay);
  if (scan.log_decay) exponentiate(tile.shape(), decay);
}

/// Reads the block's channels of row n of a state [N,D]; null is 0.
template <typename Real>
void read_state(const Real* states, std::int64_t n, int D, ScanBlock block, Real* to) {
  if (states) {
    std::copy_n(states + n * D + block.first, block.columns, to);
  } else {
    std::fill_n(to, block.columns, Real{0});
  }
}

/// Writes zeros at tokens outside every sequence, `columns` of each.
inline void clear_outside(const ScanRecurrence& scan, DType dtype, const TokenTensor& tensor,
                          int columns) {
  if (!scan.cu_seqlens || !tensor.data) return;
  const auto clear = [&](std::int64_t begin, std::int64_t end) {
    void* row = element_at(dtype, tensor.data, begin * tensor.time_stride);
    fill_rows_with_zero(end - begin, columns, {dtype, row, tensor.time_stride});
  };
  clear(0, scan.cu_seqlens[0]);
  clear(scan.cu_seqlens[scan.N], scan.T);
}
inline void clear_outside(const ScanRecurrence& scan, DType dtype, const TokenTensor& tensor) {
  clear_outside(scan, dtype, tensor, scan.D);
}

}  // namespace tandem::cpu
