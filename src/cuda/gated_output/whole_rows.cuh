// gated_output_whole_rows_kernel: norm(residual + a W^T + bias) in one kernel. A row's tiles are
// computed at the same time and stay in registers until its norm is known, so neither the sum nor,
// with a plain gate, a = o gate passes through memory.
//
//   of 64 rows of a tile:
//   products   o gate on its way into them, the residual behind (gemm/loop.cuh); rounded
//   publish    mean and squared deviations of the tile's columns; one more tile has arrived
//   sum        written, where it is wanted
//   wait       until all tiles of these rows have arrived
//   normalise  by the mean and deviations of whole rows, merged; written
//
// CTAs wait for each other, so all of a row must run at some time: there is one per multiprocessor,
// and they start in their order.
//
// Numerics: products, sums and the norm are fp32. The sum is rounded before its norm, as a backward
// reads it, and out once. Deviations are taken from each tile's own mean and merged as by Chan,
// Golub and LeVeque, so a row's mean may be large. One order of sums. Floor: 2 M d_in d flops, or
// o, the gate, the residual and what is written once.
#pragma once

#include <cuda/atomic>

#include "cuda/gated_output/forward_params.h"
#include "cuda/gemm/bias.cuh"
#include "cuda/gemm/loop.cuh"
#include "cuda/gemm/target.cuh"

namespace tandem::cuda::gated_output {

template <class Element, bool kGated>
using WholeRowsConfig = gemm::Config<Element, gemm::Layout::kNT, kWholeRowsColumns, kGated>;

template <class Config>
struct WholeRowsShared {
  gemm::Shared<Config> products;
  // The norm's, of the CTA's columns.
  float weight[Config::kColumns];
  float bias[Config::kColumns];
};

/// What of a tile's products becomes the norm of rows.
template <class Config>
class NormEpilogue {
 public:
  using Element = typename Config::Element;
  using Fragment = gemm::Fragment<Config::kColumns>;

  __device__ NormEpilogue(const WholeRowsParams& params, WholeRowsShared<Config>& shared)
      : params_(params), shared_(shared), d_(params.columns[0]), tiles_(params.tiles_before[1]) {}

  /// Loads the norm's vectors.
  __device__ void prepare() const {
    const int i = static_cast<int>(threadIdx.x);
    const int column = static_cast<int>(blockIdx.x) % tiles_ * Config::kColumns + i;
    shared_.weight[i] = load(params_.norm_weight, column, 1.0f);
    shared_.bias[i] = load(params_.norm_bias, column, 0.0f);
    cutlass::arch::NamedBarrier::sync(256, gemm::kPrepareBarrier);
  }

  __device__ void operator()(const Fragment& fragment, gemm::PanelStore<Config>& store) const {
    gemm::add_bias<Element>(params_.bias.data, params_.bias.dtype == DType::kFloat32, d_, fragment);
    round(fragment);
    publish(fragment);
    if (params_.sum.matrix.data != nullptr) {
      gemm::write(params_.sum, params_.rows, d_, d_, fragment, store);
    }
    wait(fragment);
#pragma unroll
    for (int half = 0; half < 2; ++half) normalize(fragment, half);
    gemm::write(params_.out, params_.rows, d_, d_, fragment, store);
  }

 private:
  using Arrived = ::cuda::atomic_ref<std::uint32_t, ::cuda::thread_scope_device>;

  __device__ float load(const WeightVector& vector, int column, float absent) const {
    if (vector.data == nullptr || column >= d_) return absent;
    if (vector.dtype == DType::kFloat32) return static_cast<const float*>(vector.data)[column];
    return static_cast<float>(static_cast<const Element*>(vector.data)[column]);
  }

  __device__ static int row_of(const Fragment& fragment, int half) {
    return fragment.row + fragment_row() + 8 * half;
  }
  __device__ static bool is_first_of_quad() { return threadIdx.x % 4 == 0; }
  /// Columns of a row's tile.
  __device__ float columns_of(int tile) const {
    return static_cast<float>(min(max(d_ - tile * Config::kColumns, 0), Config::kColumns));
  }
  __device__ Arrived arrived(const Fragment& fragment) const {
    return Arrived(params_.arrived[fragment.row / 64]);
  }

  /// Rounds the sum as it is written, or would be. why the barriers: ptxas (13.0) else reads
  /// accumulators before their products are waited for, and serialises these.
  __device__ static void round(const Fragment& fragment) {
#pragma unroll
    for (float& value : fragment.values) {
      value = static_cast<float>(static_cast<Element>(value));
      asm volatile("" : "+f"(value));
    }
  }

  /// Publishes what the tile knows of its rows.
  __device__ void publish(const Fragment& fragment) const {
    const int tile = fragment.column / Config::kColumns;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int row = row_of(fragment, half);
      const float2 part = part_of_row(fragment, half, columns_of(tile));
      if (is_first_of_quad() && row < params_.rows) {
        params_.parts[std::int64_t{row} * tiles_ + tile] = part;
      }
    }
    sync_warpgroup(gemm::rows_barrier());
    if (threadIdx.x % 128 == 0) {
      arrived(fragment).fetch_add(1, ::cuda::memory_order_release);
    }
  }

  /// The mean of a row's columns in the tile and the sum of squared deviations from it; without
  /// centering 0 and the sum of squares.
  __device__ float2 part_of_row(const Fragment& fragment, int half, float columns) const {
    int left = static_cast<int>(columns) - fragment_column(0);
    float sum = 0.0f;
    if (params_.centers) {
#pragma unroll
      for (int block = 0; block < Config::kColumns / 8; ++block) {
        const float* x = fragment.values + 4 * block + 2 * half;
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          if (8 * block + i < left) sum += x[i];
        }
      }
    }
    const float mean = gemm::sum_of_quad(sum) / columns;
    asm("" : "+r"(left));  // why: it would keep all comparisons for the second loop, and spill
    float deviations = 0.0f;
#pragma unroll
    for (int block = 0; block < Config::kColumns / 8; ++block) {
      const float* x = fragment.values + 4 * block + 2 * half;
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const float deviation = x[i] - mean;
        if (8 * block + i < left) deviations = fmaf(deviation, deviation, deviations);
      }
    }
    return {mean, gemm::sum_of_quad(deviations)};
  }

  /// Waits until all tiles of these rows have been published.
  __device__ void wait(const Fragment& fragment) const {
    if (threadIdx.x % 32 == 0) {
      const Arrived tiles = arrived(fragment);
      while (tiles.load(::cuda::memory_order_acquire) < static_cast<std::uint32_t>(tiles_)) {
      }
    }
    __syncwarp();
  }

  /// Normalises a row, and keeps its mean and rstd.
  __device__ void normalize(const Fragment& fragment, int half) const {
    const int row = row_of(fragment, half);
    const auto [mean, rstd] = merge_parts(min(row, params_.rows - 1));
    if (fragment.column == 0 && is_first_of_quad() && row < params_.rows) {
      if (params_.mean != nullptr) params_.mean[row] = mean;
      if (params_.rstd != nullptr) params_.rstd[row] = rstd;
    }
#pragma unroll
    for (int block = 0; block < Config::kColumns / 8; ++block) {
      float* x = fragment.values + 4 * block + 2 * half;
      const int column = fragment_column(block);
      const float2 weight = *reinterpret_cast<const float2*>(shared_.weight + column);
      const float2 bias = *reinterpret_cast<const float2*>(shared_.bias + column);
      x[0] = fmaf((x[0] - mean) * rstd, weight.x, bias.x);
      x[1] = fmaf((x[1] - mean) * rstd, weight.y, bias.y);
    }
  }

  struct Statistics {
    float mean, rstd;
  };
  /// Of all columns of a row. Four lanes together.
  __device__ Statistics merge_parts(int row) const {
    constexpr int kHeld = kMostTilesOfRow / 4;
    const float2* parts = params_.parts + std::int64_t{row} * tiles_;
    float2 held[kHeld] = {};
    float sum = 0.0f;
#pragma unroll
    for (int i = 0; i < kHeld; ++i) {
      const int tile = 4 * i + threadIdx.x % 4;
      if (tile < tiles_) held[i] = __ldcg(parts + tile);  // others wrote it: not from the L1
    }
#pragma unroll
    for (int i = 0; i < kHeld; ++i) sum += columns_of(4 * i + threadIdx.x % 4) * held[i].x;
    const auto d = static_cast<float>(d_);
    const float mean = gemm::sum_of_quad(sum) / d;
    float deviations = 0.0f;
#pragma unroll
    for (int i = 0; i < kHeld; ++i) {
      const float apart = held[i].x - mean;
      deviations += held[i].y + columns_of(4 * i + threadIdx.x % 4) * apart * apart;
    }
    return {mean, rsqrtf(gemm::sum_of_quad(deviations) / d + params_.eps)};
  }

  const WholeRowsParams& params_;
  WholeRowsShared<Config>& shared_;
  int d_;
  int tiles_;  // of a row
};

template <class Element, bool kGated>
__global__ __launch_bounds__(
    WholeRowsConfig<Element, kGated>::kThreads,
    1) void gated_output_whole_rows_kernel(const __grid_constant__ WholeRowsParams params) {
  extern __shared__ __align__(1024) char shared_memory[];
  using Config = WholeRowsConfig<Element, kGated>;
  auto& shared = *reinterpret_cast<WholeRowsShared<Config>*>(shared_memory);
  static_assert(sizeof(shared) <= kSharedMemoryPerBlock);
  gemm::run<Config>(params, shared.products, NormEpilogue<Config>(params, shared));
}

template <class Element, bool kGated>
void launch_whole_rows(const WholeRowsParams& params, int multiprocessors, void* stream) {
  using Config = WholeRowsConfig<Element, kGated>;
  gemm::launch<Config>("gated_output_forward", gated_output_whole_rows_kernel<Element, kGated>,
                       params, multiprocessors, stream, sizeof(WholeRowsShared<Config>));
}

}  // namespace tandem::cuda::gated_output
