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
  // The norm's weights and biases of two neighbouring columns each, of the CTA's.
  struct alignas(16) Norm {
    float weight[2];
    float bias[2];
  } norm[Config::kColumns / 2];
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
    shared_.norm[i / 2].weight[i % 2] = load(params_.norm_weight, column, 1.0f);
    shared_.norm[i / 2].bias[i % 2] = load(params_.norm_bias, column, 0.0f);
    cutlass::arch::NamedBarrier::sync(256, gemm::kPrepareBarrier);
  }

  __device__ void operator()(const Fragment& fragment, gemm::PanelStore<Config>& store) const {
    gemm::add_bias<Element>(params_.bias.data, params_.bias.dtype == DType::kFloat32, d_, fragment);
    round(fragment);
    publish(fragment);
    // why a loop: what writes both is fetched once, which takes as long as the writing.
#pragma unroll 1
    for (const gemm::Target* to = &params_.sum;; to = &params_.out) {
      if (to->matrix.data != nullptr) gemm::write(*to, params_.rows, d_, d_, fragment, store);
      if (to == &params_.out) break;
      wait(fragment);
      normalize(fragment);
    }
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
    const float columns = columns_of(tile);
    float2 parts[2];
    if (fragment.column + Config::kColumns <= d_) {
      parts_of_rows<true>(fragment, columns, parts);
    } else {
      parts_of_rows<false>(fragment, columns, parts);
    }
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int row = row_of(fragment, half);
      if (is_first_of_quad() && row < params_.rows) {
        params_.parts[std::int64_t{row} * tiles_ + tile] = parts[half];
      }
    }
    sync_warpgroup(gemm::rows_barrier());
    // why not the first thread: that one stores the sum, and would wait for its release before.
    if (threadIdx.x % 128 == 32) {
      arrived(fragment).fetch_add(1, ::cuda::memory_order_release);
    }
  }

  /// Of both rows of a thread: the mean of a row's columns in the tile and the sum of squared
  /// deviations from it; without centering 0 and the sum of squares. `kWhole`: no column of the
  /// tile lies behind the row's end.
  template <bool kWhole>
  __device__ void parts_of_rows(const Fragment& fragment, float columns, float2 (&parts)[2]) const {
    int left = static_cast<int>(columns) - fragment_column(0);
    const auto for_values = [&](const auto& body) {
#pragma unroll
      for (int block = 0; block < Config::kColumns / 8; ++block) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
#pragma unroll
          for (int i = 0; i < 2; ++i) {
            if (kWhole || 8 * block + i < left) {
              body(half, i, fragment.values[4 * block + 2 * half + i]);
            }
          }
        }
      }
    };
    float sums[2][2] = {};
    if (params_.centers) {
      for_values([&](int half, int i, float x) { sums[half][i] += x; });
    }
    float means[2];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      means[half] = gemm::sum_of_quad(sums[half][0] + sums[half][1]) / columns;
    }
    asm("" : "+r"(left));  // why: it would keep all comparisons for the second loop, and spill
    float deviations[2][2] = {};
    for_values([&](int half, int i, float x) {
      const float deviation = x - means[half];
      deviations[half][i] = fmaf(deviation, deviation, deviations[half][i]);
    });
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      parts[half] = {means[half], gemm::sum_of_quad(deviations[half][0] + deviations[half][1])};
    }
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

  /// Normalises both rows of a thread, and keeps their means and rstds.
  __device__ void normalize(const Fragment& fragment) const {
    Statistics of[2];
    merge_parts(fragment, of);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int row = row_of(fragment, half);
      if (fragment.column == 0 && is_first_of_quad() && row < params_.rows) {
        if (params_.mean != nullptr) params_.mean[row] = of[half].mean;
        if (params_.rstd != nullptr) params_.rstd[row] = of[half].rstd;
      }
    }
#pragma unroll
    for (int block = 0; block < Config::kColumns / 8; ++block) {
      const auto norm = shared_.norm[fragment_column(block) / 2];
#pragma unroll
      for (int half = 0; half < 2; ++half) {
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          float& x = fragment.values[4 * block + 2 * half + i];
          x = fmaf((x - of[half].mean) * of[half].rstd, norm.weight[i], norm.bias[i]);
        }
      }
    }
  }

  struct Statistics {
    float mean, rstd;
  };
  /// Of all columns of a thread's rows. Four lanes together.
  __device__ void merge_parts(const Fragment& fragment, Statistics (&of)[2]) const {
    constexpr int kHeld = kMostTilesOfRow / 4;
    float2 held[2][kHeld] = {};
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int row = min(row_of(fragment, half), params_.rows - 1);
      const float2* parts = params_.parts + std::int64_t{row} * tiles_;
#pragma unroll
      for (int i = 0; i < kHeld; ++i) {
        const int tile = 4 * i + threadIdx.x % 4;
        // why not from the L1: others wrote it.
        if (tile < tiles_) held[half][i] = __ldcg(parts + tile);
      }
    }
    const auto d = static_cast<float>(d_);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float sum = 0.0f;
#pragma unroll
      for (int i = 0; i < kHeld; ++i) {
        sum += columns_of(4 * i + threadIdx.x % 4) * held[half][i].x;
      }
      const float mean = gemm::sum_of_quad(sum) / d;
      float deviations = 0.0f;
#pragma unroll
      for (int i = 0; i < kHeld; ++i) {
        const float apart = held[half][i].x - mean;
        deviations += held[half][i].y + columns_of(4 * i + threadIdx.x % 4) * apart * apart;
      }
      of[half] = {mean, rsqrtf(gemm::sum_of_quad(deviations) / d + params_.eps)};
    }
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
