// What the roles of gla_wide_gradients_kernel share: sizes, shared memory and barriers, and what a
// CTA makes.
#pragma once

#include "cuda/gla/wide/decay.cuh"
#include "cuda/parts/barrier.cuh"
#include "cuda/parts/panel.cuh"
#include "cuda/parts/ring.cuh"
#include "cuda/parts/tma.cuh"

namespace tandem::cuda::gla {

/// `kKeyPartsT`: of kWideKeys columns of K, one or two.
template <class ElementT, int kKeyPartsT>
struct WideConfig {
  using Element = ElementT;
  static constexpr int kThreads = 384;
  static constexpr int kMemoryRegisters = 24;
  static constexpr int kRowsRegisters = 240;
  // A launch of 384 threads has 168 registers a thread.
  static_assert(kMemoryRegisters + 2 * kRowsRegisters <= 3 * 168);
  // Named barriers; 1 and 2 are those of the warpgroups.
  static constexpr int kRowsSync = 3;  // of both warpgroups for rows

  /// Of a gradient that a CTA makes: all of dq and dk. why no more of dv where K is narrow: all
  /// three kinds of products then fit in registers alike.
  static constexpr int kColumns = kKeyPartsT * kWideKeys;
  static constexpr int kRowPanelBytes = panel_bytes(kWideRows);
  static constexpr int kSlotBytes = 2 * kRowPanelBytes;
  /// Slots that 128 tokens of so many columns take.
  static constexpr int kTileSlots = kWideRows * kColumns * 2 / kSlotBytes;
  /// Of 64 columns of V of St.
  static constexpr int kStateBytes = kColumns / kPanelColumns * panel_bytes(64);
};

template <class Config>
struct WideShared {
  static constexpr int kSlots = 6;
  static constexpr int kTables = 2;

  /// What a copy fills: 64 columns of 128 rows and of 128 tokens that these are paired with, 64
  /// tokens of 256 columns or 128 of 128, 128 columns of 128 rows, or a step of the state.
  union Slot {
    struct {
      alignas(1024) char rows[Config::kRowPanelBytes];
      alignas(1024) char tokens[Config::kRowPanelBytes];
    } step;
    alignas(1024) char tile[Config::kSlotBytes];
  };
  Slot slots[kSlots];
  alignas(16) WideDecay tables[kTables][kWideChunks];  // of a span
  Ring<kSlots> ring;
  Ring<kTables> decays;
};

enum class WideGradient { kQuery, kKey, kValue };

/// 128 rows of a gradient of a head, Config::kColumns of it.
struct WideItem {
  WideGradient gradient;
  int head;  // of the launch
  int batch;
  int batch_head;
  int span;
  int block;   // of rows, of the span's two
  int column;  // of V, of dv

  __device__ int begin_of(int of_block) const { return kWideSpan * span + kWideRows * of_block; }
  __device__ int begin() const { return begin_of(block); }
  __device__ bool is_query() const { return gradient == WideGradient::kQuery; }
};

__device__ inline unsigned wide_blocks(const WideBackwardParams& params) {
  return static_cast<unsigned>((params.problem.forward.T + kWideRows - 1) / kWideRows);
}
__device__ inline unsigned wide_items(const WideBackwardParams& params) {
  return static_cast<unsigned>(params.heads) * wide_blocks(params) * params.kinds();
}

/// Returns blockIdx.x. why by assembly: a value that roles have in common is spilled in some.
__device__ inline unsigned wide_cta() {
  unsigned cta;
  asm volatile("mov.u32 %0, %%ctaid.x;" : "=r"(cta));
  return cta;
}

/// The items of a CTA, in turn. Those of one block are neighbours, since they read the same.
struct WidePosition {
  unsigned round = 0;

  /// why rotated: every CTA then gets all kinds of items, which do not take equally long.
  __device__ unsigned item() const {
    constexpr unsigned kTurn = 7;
    return round * gridDim.x + (wide_cta() + kTurn * round) % gridDim.x;
  }
  /// Whether there may be items in this round or behind it.
  __device__ bool more(const WideBackwardParams& params) const {
    return round * gridDim.x < wide_items(params);
  }
  __device__ bool has_item(const WideBackwardParams& params) const {
    return item() < wide_items(params);
  }
};

__device__ inline WideItem find_wide_item(const WideBackwardParams& params, unsigned index) {
  const unsigned kinds = params.kinds(), blocks = wide_blocks(params);
  const unsigned block = index / kinds, kind = index - block * kinds;
  WideItem item;
  item.gradient = kind == 0   ? WideGradient::kQuery
                  : kind == 1 ? WideGradient::kKey
                              : WideGradient::kValue;
  item.column = kind < 2 ? 0 : static_cast<int>(kind - 2) * params.columns();
  item.head = static_cast<int>(block / blocks);
  const int of_head = static_cast<int>(block - item.head * blocks);
  item.span = of_head / kWideBlocks;
  item.block = of_head % kWideBlocks;
  const unsigned of_all = params.first_head + item.head, H = params.problem.forward.H;
  item.batch = static_cast<int>(of_all / H);
  item.batch_head = static_cast<int>(of_all - item.batch * H);
  return item;
}

/// Whether the rows of an item have pairs with the other block of their span, which is the one
/// before or behind.
__device__ inline bool has_other_block(const WideBackwardParams& params, const WideItem& item) {
  if (item.is_query()) return item.block == 1;
  return item.block == 0 && item.begin_of(1) < params.problem.forward.T;
}

/// Whether a row sum of an item's gradient is wanted.
__device__ inline bool has_sums(const WideBackwardParams& params, const WideItem& item) {
  return params.query_rows != nullptr && item.gradient != WideGradient::kValue;
}

/// Columns that rows are multiplied with, by 64: of V, or of K.
__device__ inline int wide_steps(const WideBackwardParams& params, const WideItem& item) {
  return item.gradient == WideGradient::kValue ? (params.problem.forward.K + 63) / 64
                                               : params.value_panels;
}

}  // namespace tandem::cuda::gla
