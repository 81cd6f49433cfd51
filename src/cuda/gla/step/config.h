// Tile and threads of gla_step_kernel.
#pragma once

namespace tandem::cuda::gla {

/// How one CTA's threads lie over its columns of a state [K,V].
struct StepTile {
  int vector;          // neighbouring columns that a thread loads at once
  int column_threads;  // threads side by side in a row; the tile is vector * column_threads wide
  int threads;         // in all; each takes every (threads / column_threads)-th row
  int rows_in_flight;  // loads of a thread before the first one is used
};

/// Tensors of `ElementT`, states stored as `StoredT`.
template <class ElementT, class StoredT, StepTile kTileT>
struct StepConfig {
  using Element = ElementT;
  using Stored = StoredT;
  static constexpr StepTile kTile = kTileT;
  static constexpr int kVector = kTile.vector;
  static constexpr int kThreads = kTile.threads;
  static constexpr int kColumns = kVector * kTile.column_threads;
  static constexpr int kRowThreads = kThreads / kTile.column_threads;
  static constexpr int kRowsInFlight = kTile.rows_in_flight;
  static constexpr int kRows = kRowThreads * kRowsInFlight;  // keys of one pass

  static constexpr int kVectorBytes = kVector * static_cast<int>(sizeof(Stored));
  static constexpr int kVectorRegisters = kVectorBytes > 4 ? kVectorBytes / 4 : 1;
  // Registers of each row in flight and its address, of v and o of the thread's columns, and of the
  // rest.
  static constexpr int kRegisters = kRowsInFlight * (kVectorRegisters + 2) + 2 * kVector + 24;
  static constexpr int kBlocksPerSm = 65536 / (kRegisters * kThreads);

  static_assert(kTile.column_threads <= 32 && 32 % kTile.column_threads == 0);
  static_assert(kThreads % 32 == 0 && kColumns <= kThreads && kRows <= kThreads);
  // Little's law: 4.8 TB/s for 1 us over 132 SMs.
  static_assert(kVectorBytes < 16 ||
                kBlocksPerSm * kThreads * kRowsInFlight * kVectorBytes >= 40 * 1024);
};

/// Takes 128 bytes of a row, the unit of L2, by 16 rows of threads. A pass has 128 rows: at K = 128
/// every byte of the tile is under way before the first is used.
template <class ElementT, class StoredT>
using StepVectorConfig =
    StepConfig<ElementT, StoredT, StepTile{16 / static_cast<int>(sizeof(StoredT)), 8, 128, 8}>;

/// Takes 256 bytes of a row, where that still makes CTAs enough: an H200 writes and reads longer
/// runs faster. fp32 states.
template <class ElementT>
using StepWideConfig = StepConfig<ElementT, float, StepTile{4, 16, 256, 8}>;

/// Takes any alignment and any V: one column per thread.
template <class ElementT, class StoredT>
using StepScalarConfig = StepConfig<ElementT, StoredT, StepTile{1, 32, 128, 16}>;

}  // namespace tandem::cuda::gla
