// gated_output_rows_kernel: forward.cuh's product with the passes over rows beside it. The two
// warps that neither load nor multiply gate rows ahead of the products and normalise them behind,
// while the tensor cores work:
//
//   products  = tile n ====== - epilogue -= tile n+1 ==== - epilogue -
//   rows      gate for tile n+2, normalise n-1, gate for n+3, normalise n
//
// Warps share both, 8 rows at a time, which are claimed by counters in device memory: nobody waits
// for rows that are not claimed by a warp that runs. Those of a tile's 128 rows are normalised by
// whoever sees that all its columns are there; the last to come always does. A row's result does
// not depend on who makes it.
//
// Floor: as forward.cuh's. Bytes pass through the L2, o, the gate, the residual and the results
// also through device memory.
#pragma once

#include <cuda/atomic>

#include "cuda/gated_output/forward.cuh"
#include "cuda/gated_output/gate.cuh"
#include "cuda/row_norm/normalize.cuh"

namespace tandem::cuda::gated_output {

/// The products' config, with registers for the rows.
template <class ElementT, int kColumnsT>
struct RowsConfig : ForwardConfig<ElementT, kColumnsT> {
  static_assert(ForwardConfig<ElementT, kColumnsT>::kTogether);
  static constexpr int kProductRegisters = 200;
  static constexpr int kLoadRegisters = 104;
};

using Warp = Team<32>;
using Counter = ::cuda::atomic_ref<std::uint32_t, ::cuda::thread_scope_device>;
/// Orders what was written before what TMA reads behind, or the other way.
__device__ inline void fence_for_tma() { asm volatile("fence.proxy.async.global;" ::: "memory"); }

/// Chunks of a tile's rows.
__device__ inline int chunks_of(int rows, int tile) {
  return (min(rows - tile * gemm::kTileRows, gemm::kTileRows) + kChunkRows - 1) / kChunkRows;
}

__device__ inline void RowsParams::wait_for_rows(int row) const {
  if (row < gate.first) return;
  const int tile = row / gemm::kTileRows;
  const auto chunks = static_cast<std::uint32_t>(chunks_of(rows, tile));
  while (Counter(counters.gated[tile]).load(::cuda::memory_order_acquire) < chunks) {
  }
  fence_for_tma();
}

/// Tells that a warpgroup's sums of a tile can be seen. why a tile later: their stores take as long
/// as some steps, and nobody is in a hurry.
class SumSignal {
 public:
  __device__ SumSignal(const RowsParams& params, Barrier& summed)
      : params_(params), summed_(summed) {}
  __device__ void set(int row) { tile_ = row / gemm::kTileRows; }
  __device__ void send() {
    if (tile_ < 0) return;
    if (threadIdx.x % 128 == 0) {
      asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");
      fence_for_tma();
      Counter(params_.counters.summed[tile_]).fetch_add(1, ::cuda::memory_order_release);
      summed_.arrive();
    }
    tile_ = -1;
  }

 private:
  const RowsParams& params_;
  Barrier& summed_;  // of the CTA's tile
  int tile_ = -1;
};

/// The passes over rows, by a warp.
template <class Element, class Config>
class RowPasses {
 public:
  explicit __device__ RowPasses(const RowsParams& params) : params_(params) {}

  /// Gates and normalises until the CTA's tiles are done.
  __device__ void run(Barrier& summed) {
    const gemm::Schedule<Config, RowsParams> schedule(params_);
    const int count = schedule.count(), ctas = static_cast<int>(gridDim.x);
    std::uint32_t parity = 0;
    for (int i = static_cast<int>(blockIdx.x); i < count; i += ctas, parity ^= 1) {
      constexpr int kTilesAhead = 2;
      const int ahead = i + kTilesAhead * ctas;
      gate_up_to(ahead < count ? schedule.at(ahead).row + gemm::kTileRows : params_.rows);
      if (!params_.normalizes) continue;
      summed.wait(parity);
      normalize(schedule.at(i).row / gemm::kTileRows, i + ctas >= count);
    }
  }

  /// Normalises with the others what the CTA's last tile is part of.
  __device__ void finish() {
    const gemm::Schedule<Config, RowsParams> schedule(params_);
    const int count = schedule.count(), ctas = static_cast<int>(gridDim.x);
    const int last =
        (count - 1 - static_cast<int>(blockIdx.x)) / ctas * ctas + static_cast<int>(blockIdx.x);
    normalize(schedule.at(last).row / gemm::kTileRows, true);
  }

 private:
  static constexpr int kNothing = -1;

  /// Lets one thread claim something and tells all what, or kNothing.
  template <class Claim>
  __device__ int claim(Claim claim) {
    int claimed = 0;
    if (Warp::thread() == 0) claimed = claim();
    return __shfl_sync(0xFFFFFFFFu, claimed, 0);
  }

  /// Gates rows before `end` that nobody has claimed.
  __device__ void gate_up_to(int end) {
    const int first = static_cast<int>(params_.gate.first);
    end = min(end, static_cast<int>(params_.gate.end));
    for (;;) {
      const int chunk = claim([&] {
        const Counter next(*params_.counters.next_to_gate);
        const auto row_of_chunk = [&](std::uint32_t one) {
          return first + static_cast<std::int64_t>(one) * kChunkRows;
        };
        if (row_of_chunk(next.load(::cuda::memory_order_relaxed)) >= end) return kNothing;
        const std::uint32_t mine = next.fetch_add(1, ::cuda::memory_order_relaxed);
        return row_of_chunk(mine) < params_.gate.end ? static_cast<int>(mine) : kNothing;
      });
      if (chunk == kNothing) return;
      const int row = first + chunk * kChunkRows;
      with_gate(params_.gate.rows.gate_activation, [&](auto activation) {
        gate<decltype(activation)::value>(
            row, min(row + kChunkRows, static_cast<int>(params_.gate.end)));
      });
      fence_for_tma();
      __syncwarp();
      if (Warp::thread() == 0) {
        Counter(params_.counters.gated[row / gemm::kTileRows])
            .fetch_add(1, ::cuda::memory_order_release);
      }
    }
  }

  /// Gates rows [row,end), some eights of them at once.
  template <OutputGate kActivation>
  __device__ void gate(int row, int end) {
    constexpr int kBatch = 4;
    const GatedRows& rows = params_.gate.rows;
    const int per_row = params_.gate.d / 8;
    const int count = (end - row) * per_row;
#pragma unroll 1
    for (int first = Warp::thread(); first < count; first += kBatch * Warp::kThreads) {
      Words<Element> o[kBatch], g[kBatch];
#pragma unroll
      for (int i = 0; i < kBatch; ++i) {
        const int at = first + i * Warp::kThreads;
        const int of = row + at / per_row, column = at % per_row * 8;
        o[i] = load_words(row_of<const Element>(rows.o, of) + column, at < count);
        g[i] = load_words(row_of<const Element>(rows.gate, of) + column, at < count);
      }
#pragma unroll
      for (int i = 0; i < kBatch; ++i) {
        const int at = first + i * Warp::kThreads;
        if (at >= count) break;
        float values[8], gates[8];
        unpack(o[i], values);
        unpack(g[i], gates);
#pragma unroll
        for (int j = 0; j < 8; ++j) {
          values[j] *= apply_gate<kActivation>(gates[j]).value;
        }
        store_eight(row_of<Element>(params_.gate.gated, row + at / per_row) + at % per_row * 8, 8,
                    values);
      }
    }
  }

  /// Normalises rows of a tile that nobody has claimed, if its sums are there, or soon.
  __device__ void normalize(int tile, bool last) {
    const int chunks = chunks_of(params_.rows, tile);
    const auto sums = static_cast<std::uint32_t>(2 * params_.tiles_before[1]);
    const int patience = last ? 20000 : 2000;  // clocks: others are about as far
    bool is_there = false;
    for (;;) {
      const int chunk = claim([&] {
        const Counter summed(params_.counters.summed[tile]);
        const auto begin = clock64();
        while (!is_there && clock64() - begin < patience) {
          is_there = summed.load(::cuda::memory_order_acquire) == sums;
        }
        if (!is_there) return kNothing;
        const int mine = static_cast<int>(
            Counter(params_.counters.normalized[tile]).fetch_add(1, ::cuda::memory_order_relaxed));
        return mine < chunks ? mine : kNothing;
      });
      if (chunk == kNothing) return;
      const int row = tile * gemm::kTileRows + chunk * kChunkRows;
      const int end = min(row + kChunkRows, params_.rows);
      if (params_.norm.centers) {
        normalize_chunk<true>(row, end);
      } else {
        normalize_chunk<false>(row, end);
      }
    }
  }

  template <bool kCenters>
  __device__ void normalize_chunk(int row, int end) {
#pragma unroll 1
    for (; row < end; ++row) {
      row_norm::normalize_rows<Warp, Element, true, kCenters, 8, 1, 0>(params_.norm, row, end);
    }
  }

  const RowsParams& params_;
};

template <class Element, int kColumns>
__global__ __launch_bounds__(
    RowsConfig<Element, kColumns>::kThreads,
    1) void gated_output_rows_kernel(const __grid_constant__ RowsParams params) {
  extern __shared__ __align__(1024) char shared_memory[];
  __shared__ Barrier summed;  // both warpgroups' sums of the CTA's tile can be seen by all
  using Config = RowsConfig<Element, kColumns>;
  auto& shared = *reinterpret_cast<gemm::Shared<Config>*>(shared_memory);
  if (threadIdx.x == 0) summed.init(2);  // seen by all with the products' barriers
  const int columns = params.columns[0];
  SumSignal signal(params, summed);
  gemm::run<Config>(
      params, shared,
      [&](const gemm::Fragment<kColumns>& fragment, gemm::PanelStore<Config>& store) {
        if (params.normalizes) signal.send();
        gemm::add_bias<Element>(params.bias.data, params.bias.dtype == DType::kFloat32, columns,
                                fragment);
        gemm::write(params.sum, params.rows, columns, columns, fragment, store);
        signal.set(fragment.row);
      },
      [&] { RowPasses<Element, Config>(params).run(summed); });
  if (!params.normalizes || threadIdx.x >= 256) return;
  signal.send();
  // All of the CTA's rows but those of its last tile are in good hands.
  RowPasses<Element, Config>(params).finish();
}

/// Zeroes the counters of a call's rows kernel.
template <class Element>
__global__ void gated_output_clear_kernel(const __grid_constant__ RowCounters counters) {
  follow_stream_before_own_kernel();
  for (int i = static_cast<int>(threadIdx.x); i < counters.count(); i += blockDim.x) {
    counters.next_to_gate[i] = 0;
  }
}

template <class Element, int kColumns>
void launch_rows(const RowsParams& params, int multiprocessors, void* stream) {
  launch_kernel("gated_output_forward", gated_output_clear_kernel<Element>,
                {.blocks = 1, .threads = 256}, static_cast<cudaStream_t>(stream), params.counters);
  gemm::launch<RowsConfig<Element, kColumns>>("gated_output_forward",
                                              gated_output_rows_kernel<Element, kColumns>, params,
                                              multiprocessors, stream);
}

}  // namespace tandem::cuda::gated_output
