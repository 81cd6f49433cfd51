// projection_forward_kernel: z = x W^T for all segments of columns by one GEMM main loop; bias and
// activation happen on the fp32 accumulators, before the only write.
//
// A tile lies in one segment, so its activation is one for all threads. Heads of l2_normalize lie
// whole in a tile: it computes as many columns as whole heads take. Heads wider than a tile leave
// z in fp32 to projection_normalize_kernel.
#pragma once

#include "cuda/gemm/bias.cuh"
#include "cuda/gemm/split.cuh"
#include "cuda/gemm/target.cuh"
#include "cuda/projection/activations.cuh"

namespace tandem::cuda::projection {

template <class Element, int kColumns, int kParts = 1>
using ForwardConfig = gemm::Config<Element, gemm::Layout::kNT, kColumns, false, kParts>;

/// Divides each head of a fragment by its norm. Heads are whole 8-column blocks and begin with the
/// fragment.
template <class Config>
__device__ void normalize_heads(const ForwardParams& params, const ForwardSegment& segment,
                                const gemm::Fragment<Config::kColumns>& fragment) {
  constexpr int kBlocks = Config::kColumns / 8;
  const std::uint32_t ends = segment.head_ends;
  const int first_head = fragment.column / segment.head_width;
  const int heads = params.columns[fragment.segment] / segment.head_width - first_head;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    float sums[kBlocks];  // of a head's squares up to this block
#pragma unroll
    for (int block = 0; block < kBlocks; ++block) {
      const float* z = fragment.values + 4 * block + 2 * half;
      const float before = block == 0 || (ends >> (block - 1) & 1) ? 0.0f : sums[block - 1];
      sums[block] = fmaf(z[0], z[0], fmaf(z[1], z[1], before));
    }
    const int row = fragment.row + fragment_row() + 8 * half;
    float* norms = static_cast<float*>(segment.inverse_norm.data);
    const bool writes = norms != nullptr && row < params.rows && threadIdx.x % 4 == 0;
    norms += row * segment.inverse_norm.row_stride + first_head;
    float inverse = 0.0f;
#pragma unroll
    for (int block = kBlocks - 1; block >= 0; --block) {
      if (ends >> block & 1) {
        inverse = rsqrtf(gemm::sum_of_quad(sums[block]) + static_cast<float>(kL2NormalizeEpsilon));
        const int head = __popc(ends & ((1u << block) - 1));
        if (writes && head < heads) norms[head] = inverse;
      }
      float* z = fragment.values + 4 * block + 2 * half;
      z[0] *= inverse;
      z[1] *= inverse;
    }
  }
}

/// Writes a fragment's values where they lie in the segment, before `end`, its tile's last column.
template <class Config, int kColumns>
__device__ void write(const gemm::Target& to, const ForwardParams& params, int end,
                      const gemm::Fragment<kColumns>& fragment, gemm::PanelStore<Config>& store) {
  const int columns = params.columns[fragment.segment];
  gemm::write(to, params.rows, columns, min(columns, end), fragment, store);
}

/// Returns how many of a fragment's columns lie in its tile, before `end`, and in the segment.
template <int kColumns>
__device__ int columns_inside(const ForwardParams& params, int end,
                              const gemm::Fragment<kColumns>& fragment) {
  return min(params.columns[fragment.segment], end) - fragment.column;
}

/// Writes df/dz of a fragment, 64 columns at a time: there are few registers beside its own.
template <class Config>
__device__ void write_slopes(const ForwardParams& params, const ForwardSegment& segment, int end,
                             const gemm::Fragment<Config::kColumns>& fragment,
                             gemm::PanelStore<Config>& store) {
  const int columns = columns_inside(params, end, fragment);
#pragma unroll
  for (int panel = 0; panel < Config::kPanels; ++panel) {
    if (64 * panel >= columns) break;
    float slopes[32];
#pragma unroll
    for (int i = 0; i < 32; ++i) slopes[i] = fragment.values[32 * panel + i];
    differentiate(segment.activation, slopes, columns - 64 * panel);
    write(segment.slope, params, end,
          gemm::Fragment<64>{slopes, fragment.row, fragment.segment, fragment.column + 64 * panel,
                             fragment.outer},
          store);
  }
}

/// Adds the bias, activates and writes; `kPlain`: there is nothing to activate. why apart: what is
/// left then needs so few registers that tiles may be wide.
template <bool kPlain, class Config>
__device__ void finish(const ForwardParams& params,
                       const gemm::Fragment<Config::kColumns>& fragment,
                       gemm::PanelStore<Config>& store) {
  const ForwardSegment& segment = params.segments[fragment.segment];
  const int end = fragment.column + params.tile_columns[fragment.segment];
  gemm::add_bias<typename Config::Element>(segment.bias, segment.bias_fp32,
                                           params.columns[fragment.segment], fragment);
  if constexpr (!kPlain) {
    if (segment.slope.matrix.data != nullptr) write_slopes(params, segment, end, fragment, store);
    if (segment.activation.kind == Activation::kL2Normalize) {
      normalize_heads<Config>(params, segment, fragment);
    } else {
      activate(segment.activation, fragment.values, columns_inside(params, end, fragment));
    }
  }
  write(segment.out, params, end, fragment, store);
}

template <class Element, int kColumns, bool kPlain, int kParts>
__global__ __launch_bounds__(
    ForwardConfig<Element, kColumns, kParts>::kThreads,
    1) void projection_forward_kernel(const __grid_constant__ ForwardParams params) {
  extern __shared__ __align__(1024) char shared_memory[];
  using Config = ForwardConfig<Element, kColumns, kParts>;
  gemm::run_any<Config>(
      params, shared_memory,
      [&](const gemm::Fragment<Config::kColumns>& fragment, gemm::PanelStore<Config>& store) {
        finish<kPlain>(params, fragment, store);
      });
}

/// A warp per row and head.
template <class Element>
__global__ void projection_normalize_kernel(const __grid_constant__ NormalizeParams params) {
  follow_stream();
  const int lane = threadIdx.x % 32;
  const int heads = params.columns / params.head_width;
  const std::int64_t item = blockIdx.x * std::int64_t{blockDim.x / 32} + threadIdx.x / 32;
  if (item >= params.M * heads) return;
  const std::int64_t row = item / heads;
  const int head = static_cast<int>(item % heads);
  const float* z = params.z + row * params.columns + head * params.head_width;
  float sum = 0.0f;
  for (int i = lane; i < params.head_width; i += 32) sum = fmaf(z[i], z[i], sum);
#pragma unroll
  for (int step = 16; step > 0; step /= 2) sum += __shfl_xor_sync(0xFFFFFFFFu, sum, step);
  const float inverse = rsqrtf(sum + static_cast<float>(kL2NormalizeEpsilon));
  const std::int64_t at = row * params.out.row_stride + head * params.head_width;
  for (int i = lane; i < params.head_width; i += 32) {
    const float value = z[i] * inverse;
    if (params.out_fp32) {
      static_cast<float*>(params.out.data)[at + i] = value;
    } else {
      static_cast<Element*>(params.out.data)[at + i] = static_cast<Element>(value);
    }
  }
  if (lane == 0 && params.inverse_norm.data != nullptr) {
    static_cast<float*>(params.inverse_norm.data)[row * params.inverse_norm.row_stride + head] =
        inverse;
  }
}

template <class Element, int kColumns, bool kPlain, int kParts>
void launch_forward(const ForwardParams& params, int multiprocessors, void* stream) {
  gemm::launch_any<ForwardConfig<Element, kColumns, kParts>>(
      "projection_forward", projection_forward_kernel<Element, kColumns, kPlain, kParts>, params,
      multiprocessors, stream);
}

template <class Element>
void launch_normalize(const NormalizeParams& params, void* stream) {
  constexpr int kWarps = 8;
  const std::int64_t items = params.M * (params.columns / params.head_width);
  if (items == 0) return;
  launch_kernel("projection_forward", projection_normalize_kernel<Element>,
                {.blocks = static_cast<unsigned>(ceil_div(items, kWarps)), .threads = 32 * kWarps},
                static_cast<cudaStream_t>(stream), params);
}

}  // namespace tandem::cuda::projection
