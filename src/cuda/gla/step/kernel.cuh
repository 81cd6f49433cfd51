// gla_step_kernel: one token of gated linear attention, the state updated in place.
//
// One CTA has all K rows of one (batch, head)'s state and a tile of its columns, which are
// independent of all others:
//   S_kj = e^g S_kj + k_k v_j        o_j = scale * sum_k q_k S_kj
//
// Threads, for a tile of 8 x 4 fp32 columns (StepVectorConfig; config.h has the others):
//                  columns  0..3   4..7   ...   28..31
//   keys 0, 16, 32, ...     t0     t1     ...   t7       warp 0
//   keys 1, 17, 33, ...     t8     t9     ...   t15
//   ...
//   keys 15, 31, ...        t120   ...          t127     warp 3
// A row of the tile is 128 bytes, 16 per thread; with bf16 storage that is 8 x 8 columns. Tiles of
// a head, and heads, are neighbouring CTAs, so that what runs at one time reads neighbouring
// memory.
//
// Time chart of a CTA; others on the same SM are elsewhere in theirs:
//   thread   ~8 rows of S~~~~~~~~~~~~~~  -update, q^T S-  ~8 rows of S~  -sum over threads-  ~o~
//            ~q, k, v to shared memory~ |barrier
// With 128 rows or fewer it passes once; for each 128 further keys the first three steps again.
// Registers per thread (fp32 storage): 80 at most, 32 of them for rows in flight, so that 6 CTAs
// with 16 KB in flight each share an SM. Shared memory: 1.7 KB, q and k of the pass, v, each warp's
// share of o.
//
// Floor: S read and written once, 2 * 4 B H K V bytes with fp32 storage; q, k, v, o and the decay
// are below 2 % of it. Five flops per element of S are nothing.
// Numerics: all fp32; bf16 storage rounds S once, after o has been formed from it. The sum over K
// is in fixed order: 8 rows in a thread, then threads of a warp pairwise, then warps in turn. e^g
// by expf; where it is 0 the old state is dropped whatever it holds, NaN included.
// Limits: B * H * tiles below 2^31, K below 2^31 - 1024. K > 128 shares the machine less well: rows
// of later passes are not loaded ahead.
#pragma once

#include <cuda_fp16.h>

#include "cuda/gla/step/config.h"
#include "cuda/gla/step/launch.h"
#include "cuda/parts/stored_vector.cuh"
#include "cuda/parts/stream_order.cuh"
#include "cuda/runtime/launch.h"
#include "cuda/runtime/plan.h"

namespace tandem::cuda::gla {

template <class Config>
struct StepShared {
  static constexpr int kWarps = Config::kThreads / 32;
  float2 qk[Config::kRows];  // q and k of the pass's keys
  float v[Config::kColumns];
  float sum[kWarps][Config::kColumns];  // each warp's share of q^T S
};

/// The state and its columns that a CTA has.
struct StepPlace {
  std::int64_t batch;
  int head;
  int first_column;
};

template <class Config>
__device__ StepPlace find_step_place(const GlaStepProblem& problem) {
  // why unsigned: 64-bit division takes a hundred instructions, before the first load.
  const unsigned tiles = (problem.V - 1) / Config::kColumns + 1;
  const unsigned state = blockIdx.x / tiles;
  return {state / problem.H, static_cast<int>(state % problem.H),
          static_cast<int>(blockIdx.x % tiles) * Config::kColumns};
}

template <class Element>
__device__ Element* step_row(const StridedTensor& tensor, std::int64_t batch, int head) {
  return static_cast<Element*>(tensor.data) + batch * tensor.batch_stride +
         head * tensor.head_stride;
}

/// What each thread loads for all: q and k of one key, v of one column, and the state's log decay.
struct StepOperands {
  float q = 0.0f;
  float k = 0.0f;
  float v = 0.0f;
  float log_decay = 0.0f;
};

template <class Config>
__device__ StepOperands load_step_operands(const GlaStepProblem& problem, const StepPlace& place,
                                           int first_key) {
  using Element = typename Config::Element;
  const int query_head = place.head / (problem.H / problem.HQ);
  const int key = first_key + threadIdx.x;
  const int column = place.first_column + threadIdx.x;
  StepOperands own;
  if (threadIdx.x < Config::kRows && key < problem.K) {
    own.q = static_cast<float>(step_row<Element>(problem.q, place.batch, query_head)[key]);
    own.k = static_cast<float>(step_row<Element>(problem.k, place.batch, query_head)[key]);
  }
  if (threadIdx.x < Config::kColumns && column < problem.V) {
    own.v = static_cast<float>(step_row<Element>(problem.v, place.batch, place.head)[column]);
  }
  const DecayTensor& g = problem.log_decay;
  if (g.data != nullptr) {
    own.log_decay = g.data[place.batch * g.batch_stride + place.head * g.head_stride];
  }
  return own;
}

/// Stores o of the tile: `sum` over all rows of threads.
template <class Config>
__device__ void store_step_output(const GlaStepProblem& problem, const StepPlace& place,
                                  float (&sum)[Config::kVector], StepShared<Config>& shared) {
  using Element = typename Config::Element;
  constexpr int kColumnThreads = Config::kTile.column_threads;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
#pragma unroll
  for (int j = 0; j < Config::kVector; ++j) {
#pragma unroll
    for (int distance = kColumnThreads; distance < 32; distance *= 2) {
      sum[j] += __shfl_xor_sync(0xFFFFFFFFu, sum[j], distance);
    }
    if (lane < kColumnThreads) shared.sum[warp][lane * Config::kVector + j] = sum[j];
  }
  __syncthreads();
  const int column = threadIdx.x;
  if (column >= Config::kColumns || place.first_column + column >= problem.V) return;
  float total = 0.0f;
#pragma unroll
  for (int i = 0; i < StepShared<Config>::kWarps; ++i) total += shared.sum[i][column];
  step_row<Element>(problem.o, place.batch, place.head)[place.first_column + column] =
      static_cast<Element>(problem.scale * total);
}

template <class Config>
__global__ __launch_bounds__(Config::kThreads, Config::kBlocksPerSm) void gla_step_kernel(
    const __grid_constant__ GlaStepProblem problem) {
  using Stored = typename Config::Stored;
  __shared__ StepShared<Config> shared;
  const StepPlace place = find_step_place<Config>(problem);
  const int column = threadIdx.x % Config::kTile.column_threads * Config::kVector;
  const int row = threadIdx.x / Config::kTile.column_threads;
  const bool inside = place.first_column + column < problem.V;
  const StateTensor& state = problem.state;
  Stored* const first = static_cast<Stored*>(state.data) + place.batch * state.batch_stride +
                        place.head * state.head_stride + place.first_column + column;
  float sum[Config::kVector] = {};
  follow_stream();

  for (int first_key = 0; first_key < problem.K; first_key += Config::kRows) {
    Stored* const rows = first + (first_key + row) * state.key_stride;
    const auto exists = [&](int i) {
      return inside && first_key + row + i * Config::kRowThreads < problem.K;
    };
    StoredVector<Stored, Config::kVector> stored[Config::kRowsInFlight];
#pragma unroll
    for (int i = 0; i < Config::kRowsInFlight; ++i) {
      stored[i].load(rows + i * Config::kRowThreads * state.key_stride, exists(i));
    }
    const StepOperands own = load_step_operands<Config>(problem, place, first_key);
    if (first_key > 0) __syncthreads();  // all threads have used the last pass's q and k
    if (threadIdx.x < Config::kRows) shared.qk[threadIdx.x] = {own.q, own.k};
    if (threadIdx.x < Config::kColumns) shared.v[threadIdx.x] = own.v;
    const float decay = expf(own.log_decay);
    __syncthreads();
    float v[Config::kVector];
#pragma unroll
    for (int j = 0; j < Config::kVector; ++j) v[j] = shared.v[column + j];
#pragma unroll
    for (int i = 0; i < Config::kRowsInFlight; ++i) {
      const float2 qk = shared.qk[row + i * Config::kRowThreads];
      float values[Config::kVector];
      stored[i].unpack(values);
#pragma unroll
      for (int j = 0; j < Config::kVector; ++j) {
        const float kept = decay == 0.0f ? 0.0f : decay * values[j];
        values[j] = kept + qk.y * v[j];
        // why a condition, though q is 0 there: 0 * inf.
        if (exists(i)) sum[j] += qk.x * values[j];
      }
      stored[i].pack(values);
      stored[i].store(rows + i * Config::kRowThreads * state.key_stride, exists(i));
    }
  }
  store_step_output(problem, place, sum, shared);
}

template <class Config>
void launch_step(const char* name, const GlaStepProblem& problem, void* stream) {
  const std::int64_t tiles = ceil_div(problem.V, Config::kColumns);
  launch_kernel(
      name, gla_step_kernel<Config>,
      {.blocks = static_cast<unsigned>(problem.B * problem.H * tiles), .threads = Config::kThreads},
      static_cast<cudaStream_t>(stream), problem);
}

}  // namespace tandem::cuda::gla
