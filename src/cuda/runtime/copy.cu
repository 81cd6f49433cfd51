// copy_kernel: neighbouring lanes write 16 bytes each of a row, at multiples of 16. Of what they
// read, which may lie otherwise, they shift two pieces of 16 bytes together.
#include "cuda/runtime/copy.h"

#include <algorithm>

#include "cuda/parts/stream_order.cuh"
#include "cuda/runtime/launch.h"
#include "cuda/runtime/plan.h"

namespace tandem::cuda {
namespace {

using Element = std::uint16_t;
constexpr int kThreads = 256;
constexpr int kEight = 8;  // elements of a piece of 16 bytes

/// Elements by which an address lies behind a multiple of 16 bytes.
__device__ int misplacement(const Element* at) {
  return static_cast<int>(reinterpret_cast<std::uintptr_t>(at) % 16 / sizeof(Element));
}

/// Elements [shift, shift + 8) of two neighbouring pieces.
__device__ uint4 shifted(const uint4& first, const uint4& second, int shift) {
  std::uint32_t words[8] = {first.x,  first.y,  first.z,  first.w,
                            second.x, second.y, second.z, second.w};
#pragma unroll
  for (int i = 0; i < 6; ++i) words[i] = shift & 4 ? words[i + 2] : words[i];
#pragma unroll
  for (int i = 0; i < 5; ++i) words[i] = shift & 2 ? words[i + 1] : words[i];
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    words[i] = shift & 1 ? __funnelshift_r(words[i], words[i + 1], 16) : words[i];
  }
  return {words[0], words[1], words[2], words[3]};
}

/// Copies a row's pieces of one of kLanes lanes.
template <int kLanes>
__device__ void copy_row(const Element* from, Element* to, int dim, int lane) {
  const int before = misplacement(to);  // elements of the first piece that are not the row's
  const int shift = (misplacement(from) - before) & (kEight - 1);
#pragma unroll 2
  for (int begin = kEight * lane - before; begin < dim; begin += kEight * kLanes) {
    // Two pieces of `from` hold this one of `to`; where they lie whole in the row, they are read.
    const int first = begin - shift, second = first + (shift > 0 ? kEight : 0);
    if (first >= 0 && second + kEight <= dim) {
      const auto piece = [&](int i) { return *reinterpret_cast<const uint4*>(from + i); };
      *reinterpret_cast<uint4*>(to + begin) = shifted(piece(first), piece(second), shift);
    } else {
      // why all loads first: each would wait for the store before it.
      Element elements[kEight];
      const auto is_there = [&](int i) { return begin + i >= 0 && begin + i < dim; };
#pragma unroll
      for (int i = 0; i < kEight; ++i) {
        if (is_there(i)) elements[i] = from[begin + i];
      }
#pragma unroll
      for (int i = 0; i < kEight; ++i) {
        if (is_there(i)) to[begin + i] = elements[i];
      }
    }
  }
}

template <int kLanes>
__global__ __launch_bounds__(kThreads) void copy_kernel(const __grid_constant__ CopyParams params) {
  follow_stream();
  constexpr int kRows = kThreads / kLanes;
  const auto heads = static_cast<unsigned>(params.heads);
  const unsigned pairs = static_cast<unsigned>(params.B) * heads;  // of a batch row and a head
  for (unsigned pair = blockIdx.y; pair < pairs; pair += gridDim.y) {
    const auto begin = [&](const StridedTensor& x) {
      return static_cast<Element*>(x.data) + pair / heads * x.batch_stride +
             pair % heads * x.head_stride;
    };
    const Element* from = begin(params.from);
    Element* to = begin(params.to);
    for (std::int64_t t = std::int64_t{blockIdx.x} * kRows + threadIdx.x / kLanes; t < params.T;
         t += std::int64_t{gridDim.x} * kRows) {
      copy_row<kLanes>(from + t * params.from.time_stride, to + t * params.to.time_stride,
                       params.dim, static_cast<int>(threadIdx.x) % kLanes);
    }
  }
}

template <int kLanes>
void launch(const char* name, const CopyParams& params, void* stream) {
  constexpr std::int64_t kMostBlocks = 1 << 16, kMostPairs = 65535, kRows = kThreads / kLanes;
  const std::int64_t blocks = std::min(ceil_div(params.T, kRows), kMostBlocks);
  launch_kernel(name, copy_kernel<kLanes>,
                {.blocks = static_cast<unsigned>(blocks),
                 .blocks_y = static_cast<unsigned>(std::min(params.B * params.heads, kMostPairs)),
                 .threads = kThreads},
                static_cast<cudaStream_t>(stream), params);
}

}  // namespace

void launch_copy(const char* name, const CopyParams& params, void* stream) {
  if (params.B == 0 || params.T == 0 || params.heads == 0 || params.dim == 0) return;
  const int pieces = params.dim / kEight + 2;  // of a row, at most
  if (pieces <= 4) return launch<4>(name, params, stream);
  if (pieces <= 8) return launch<8>(name, params, stream);
  if (pieces <= 16) return launch<16>(name, params, stream);
  launch<32>(name, params, stream);
}

}  // namespace tandem::cuda
