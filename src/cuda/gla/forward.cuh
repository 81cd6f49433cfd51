// gla_forward_kernel: chunkwise gated linear attention with a scalar decay, one CTA per (sequence,
// head).
//
// A CTA walks its sequence in chunks of C = 64 tokens and keeps the state transposed, St [V,K], in
// fp32 registers. Per chunk, with G the inclusive sum of the decays (parts/decay.cuh):
//   P_ij  = scale * 2^(G_i - G_j) * (q_i . k_j), j <= i          [C,C]   intra role
//   Ot    = St Qt * scale 2^G_i  +  Vt Pt                        [V,C]   state role
//   St    = 2^G_C St  +  (Vt 2^(G_C - G_j)) K                    [V,K]   state role
// With the state transposed, St and Vt are register operands of wgmma, and columns of V are
// independent: each 64 of them belong to one state warpgroup, which never talks to another.
//
// Roles                         threads           registers   works on
//   load   warp 0 (TMA)         128, of which 1        40     q, k, v of later chunks -> ring (3-6
//   stages)
//          warp 1                         32                  decay factors of later chunks
//   intra  warpgroup 1          128                88-128     Q Kt, decay mask -> P (2 slots)
//   state  warpgroups 2, 3      128 per 64 V      192-240     Ot, St; writes o through TMA
// Tensors that TMA cannot read (alignment, stride 0) are loaded by 96 threads of the load
// warpgroup.
//
// Time chart (chunk n); '=' tensor cores, '-' arithmetic, '~' asynchronous copies:
//   load    ~~n+2~~~~~~~ ~~n+3~~~~~~~ ~~n+4~~~~~~~        waits input.empty, arrives input.full
//   intra   =QK n+1= -mask n+1- =QK n+2= -mask-           waits input.full, P.empty; arrives P.full
//   state   -S->bf16- =StQt= =VtPt= -decay V,S- =VtK= (chunk n; o's scaling and store run under
//   =VtK=)
//                                                         waits input.full, P.full; arrives both
//                                                         empty
// Only the state role is serial in time; with two of them one's arithmetic runs under the other's
// wgmma.
//
// Floor: q, k, v read and o written once: (2 HQ K + 2 H V) * 2 bytes per token; 2 C (C K + 2 K V +
// C V) flops per chunk, about 60 % of the byte time at K = V = 128 on an H200: bound by memory.
// Numerics: decays, state and both parts of o in fp32; rounded to 16 bits once: P, St as operand of
// St Qt, decayed V, o. 2^x by ex2.approx (2 ulp). Limits: K, V <= 128; chunks of one (sequence,
// head) are serial, so B*H below the SM count idles SMs.
#pragma once

#include <cutlass/arch/reg_reconfig.h>

#include "cuda/gla/forward_config.h"
#include "cuda/gla/forward_params.h"
#include "cuda/parts/decay.cuh"
#include "cuda/parts/fragment.cuh"
#include "cuda/parts/ring.cuh"
#include "cuda/parts/tma.cuh"
#include "cuda/parts/wgmma.cuh"
#include "cuda/runtime/launch.h"

namespace tandem::cuda {

template <class Config>
struct ForwardShared {
  struct Stage {
    alignas(1024) char q[Config::kKeyBytes];    // [C,K]
    alignas(1024) char k[Config::kKeyBytes];    // [C,K]
    alignas(1024) char v[Config::kValueBytes];  // [C,V]
  };
  using InputRing = Ring<Config::kStages>;
  using IntraRing = Ring<Config::kIntraStages>;

  Stage stages[Config::kStages];
  alignas(1024) char p[Config::kIntraStages][panel_bytes(Config::kChunk)];  // [C,C]
  alignas(1024) char o[Config::kStateGroups][panel_bytes(Config::kChunk)];  // [C,64]
  ChunkDecay<Config::kChunk> decay[Config::kStages];
  InputRing input;
  IntraRing intra;
};

/// The tokens of one (sequence, head).
struct Span {
  int batch;
  int head;
  std::int64_t sequence_head;  // index into [N,H]
  std::int64_t begin;
  std::int64_t length;

  template <class Config>
  __device__ int chunks() const {
    return static_cast<int>((length + Config::kChunk - 1) / Config::kChunk);
  }
  __device__ int valid_tokens(int chunk, int chunk_size) const {
    return static_cast<int>(
        min(length - std::int64_t{chunk} * chunk_size, std::int64_t{chunk_size}));
  }
};

__device__ inline std::int64_t clamped_boundary(const GlaForwardProblem& problem, std::int64_t n) {
  return min(max(std::int64_t{problem.cu_seqlens[n]}, std::int64_t{0}), problem.T);
}

__device__ inline Span find_span(const GlaForwardProblem& problem) {
  const std::int64_t n = blockIdx.x / problem.H;
  Span span{0, static_cast<int>(blockIdx.x % problem.H), blockIdx.x, 0, 0};
  if (problem.cu_seqlens == nullptr) {
    span.batch = static_cast<int>(n);
    span.length = problem.T;
  } else if (n < problem.N) {
    span.begin = clamped_boundary(problem, n);
    span.length = max(clamped_boundary(problem, n + 1) - span.begin, std::int64_t{0});
  }
  return span;
}

template <class Element>
__device__ inline Element* token_row(const StridedTensor& tensor, int batch, std::int64_t time,
                                     int head) {
  return static_cast<Element*>(tensor.data) + batch * tensor.batch_stride +
         time * tensor.time_stride + head * tensor.head_stride;
}

// ----------------------------------------------------------------------------------------------
// load

template <class Config>
__device__ void load_with_tma(const GlaForwardParams& params, ForwardShared<Config>& shared,
                              const Span& span) {
  const int query_head = span.head / (params.problem.H / params.problem.HQ);
  typename ForwardShared<Config>::InputRing::Position at;
  for (int chunk = 0; chunk < span.chunks<Config>(); ++chunk, at.advance()) {
    const int time = static_cast<int>(span.begin) + chunk * Config::kChunk;
    auto& stage = shared.stages[at.stage];
    Barrier& full = shared.input.full[at.stage];
    shared.input.wait_empty(at);
    full.arrive_and_expect(Config::kStageBytes);
    for (int column = 0; column < Config::kKeyDim; column += kPanelColumns) {
      const TileCoordinate from{column, query_head, time, span.batch};
      load_panel(params.q_map, full, stage.q + column * Config::kChunk * 2, from);
      load_panel(params.k_map, full, stage.k + column * Config::kChunk * 2, from);
    }
    for (int column = 0; column < Config::kValueDim; column += kPanelColumns) {
      load_panel(params.v_map, full, stage.v + column * Config::kChunk * 2,
                 {column, span.head, time, span.batch});
    }
  }
}

/// Threads of the load warpgroup that copy when TMA cannot: all but the decay warp.
constexpr int kGatherThreads = 96;

/// Copies up to 64 rows of `dim` elements into panels of `width` columns, zeros elsewhere.
template <class Element>
__device__ void gather_tile(char* tile, int width, const Element* first_row,
                            std::int64_t row_stride, int rows, int dim, int thread) {
  const int pieces_per_row = width / 8;
  for (int piece = thread; piece < 64 * pieces_per_row; piece += kGatherThreads) {
    const int row = piece / pieces_per_row;
    const int column = piece % pieces_per_row * 8;
    alignas(16) Element values[8];
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      const bool inside = row < rows && column + i < dim;
      values[i] = inside ? first_row[row * row_stride + column + i] : Element(0.0f);
    }
    char* panel = tile + column / kPanelColumns * panel_bytes(64);
    *reinterpret_cast<uint4*>(panel + panel_offset(row, column % kPanelColumns / 8)) =
        *reinterpret_cast<const uint4*>(values);
  }
}

template <class Config>
__device__ void load_with_threads(const GlaForwardParams& params, ForwardShared<Config>& shared,
                                  const Span& span, int thread) {
  using Element = typename Config::Element;
  const GlaForwardProblem& problem = params.problem;
  const int query_head = span.head / (problem.H / problem.HQ);
  typename ForwardShared<Config>::InputRing::Position at;
  for (int chunk = 0; chunk < span.chunks<Config>(); ++chunk, at.advance()) {
    const std::int64_t time = span.begin + std::int64_t{chunk} * Config::kChunk;
    const int rows = span.valid_tokens(chunk, Config::kChunk);
    auto& stage = shared.stages[at.stage];
    shared.input.wait_empty(at);
    gather_tile(stage.q, Config::kKeyDim,
                token_row<Element>(problem.q, span.batch, time, query_head), problem.q.time_stride,
                rows, problem.K, thread);
    gather_tile(stage.k, Config::kKeyDim,
                token_row<Element>(problem.k, span.batch, time, query_head), problem.k.time_stride,
                rows, problem.K, thread);
    gather_tile(stage.v, Config::kValueDim,
                token_row<Element>(problem.v, span.batch, time, span.head), problem.v.time_stride,
                rows, problem.V, thread);
    fence_shared_for_async_proxy();
    arrive_once_per_warp(shared.input.full[at.stage]);
  }
}

template <class Config>
__device__ void prepare_decay(const GlaForwardParams& params, ForwardShared<Config>& shared,
                              const Span& span) {
  const DecayTensor& decay = params.problem.log_decay;
  const float* of_head = decay.data + span.batch * decay.batch_stride +
                         span.begin * decay.time_stride + span.head * decay.head_stride;
  const auto load = [&](std::int64_t token) {
    const bool present = decay.data != nullptr && token < span.length;
    return present ? of_head[token * decay.time_stride] : 0.0f;
  };
  const std::int64_t lane_token = threadIdx.x % 32 * 2;
  float2 next = {load(lane_token), load(lane_token + 1)};
  typename ForwardShared<Config>::InputRing::Position at;
  for (int chunk = 0; chunk < span.chunks<Config>(); ++chunk, at.advance()) {
    // why: the next chunk's loads are under way while this chunk waits for its stage.
    const float2 own = next;
    const std::int64_t token = std::int64_t{chunk + 1} * Config::kChunk + lane_token;
    next = {load(token), load(token + 1)};
    shared.input.wait_empty(at);
    compute_chunk_decay(own, params.problem.scale, shared.decay[at.stage]);
    arrive_once_per_warp(shared.input.full[at.stage]);
  }
}

// ---------------------------------------------------------------------------------------------
// intra

/// Zeroes rows [from, 64) of a tile, so that tokens of the next sequence never enter a product.
__device__ inline void clear_rows(char* tile, int tile_bytes, int from) {
  const int rows = 64 - from;
  for (int piece = threadIdx.x % 128; piece < tile_bytes / panel_bytes(64) * rows * 8;
       piece += 128) {
    char* panel = tile + piece / (rows * 8) * panel_bytes(64);
    *reinterpret_cast<uint4*>(panel + panel_offset(from + piece / 8 % rows, piece % 8)) = uint4{};
  }
}

/// P = scale * decay * mask (.) QKt for this thread's fragment, rounded and stored as a panel
/// [i][j].
template <class Config>
__device__ void store_intra(const float (&qk)[32], const ChunkDecay<Config::kChunk>& decay,
                            float scale, char* p) {
  const int row = fragment_row();
  const float sum[2] = {decay.log2_sum[row], decay.log2_sum[row + 8]};
  const int begin[2] = {decay.window_begin[row], decay.window_begin[row + 8]};
#pragma unroll
  for (int step = 0; step < Config::kChunk / 16; ++step) {
    float weighted[8];
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      const int half = i / 2 % 2;  // rows `row` and `row + 8`
      const int j = fragment_column(2 * step + i / 4) + i % 2;
      const bool causal = j <= row + 8 * half;
      const float factor = decay_factor(sum[half], begin[half], decay.log2_sum[j], j);
      weighted[i] = causal ? scale * factor * qk[8 * step + i] : 0.0f;
    }
    std::uint32_t packed[4];
    accumulator_to_operand<typename Config::Element>(weighted, 0, packed);
    store_rows(p, step, packed);
  }
}

template <class Config>
__device__ void run_intra(const GlaForwardParams& params, ForwardShared<Config>& shared,
                          const Span& span) {
  using Element = typename Config::Element;
  typename ForwardShared<Config>::InputRing::Position in;
  typename ForwardShared<Config>::IntraRing::Position out;
  for (int chunk = 0; chunk < span.chunks<Config>(); ++chunk, in.advance(), out.advance()) {
    auto& stage = shared.stages[in.stage];
    shared.input.wait_full(in);
    float qk[32];
    wgmma_begin();
#pragma unroll
    for (int step = 0; step < Config::kKeyDim / 16; ++step) {
      wgmma_ss<Element, 64, Major::K, Major::K>(qk, k_major_descriptor(stage.q, step),
                                                k_major_descriptor(stage.k, step), step > 0);
    }
    wgmma_commit();
    shared.intra.wait_empty(out);
    wgmma_wait<0>();
    fence_registers(qk);
    store_intra<Config>(qk, shared.decay[in.stage], params.problem.scale, shared.p[out.stage]);
    const int valid = span.valid_tokens(chunk, Config::kChunk);
    if (params.problem.cu_seqlens != nullptr && valid < Config::kChunk) {
      clear_rows(stage.k, Config::kKeyBytes, valid);
      clear_rows(stage.v, Config::kValueBytes, valid);
    }
    fence_shared_for_async_proxy();
    arrive_once_per_warp(shared.intra.full[out.stage]);
  }
}

// ---------------------------------------------------------------------------------------------
// state

/// Calls visit(accumulator index, key, value) for this thread's elements of St that exist.
template <class Config, class Visit>
__device__ void for_each_state_element(const GlaForwardProblem& problem, int group, Visit visit) {
#pragma unroll
  for (int i = 0; i < Config::kKeyDim / 2; ++i) {
    const int key = fragment_column(i / 4) + i % 2;
    const int value = 64 * group + fragment_row() + i / 2 % 2 * 8;
    if (key < problem.K && value < problem.V) visit(i, key, value);
  }
}

/// Rows [0, rows) of an o panel by ordinary stores: a partial tile, or a tensor that TMA cannot
/// write.
template <class Element>
__device__ void store_panel_rows(const char* panel, const StridedTensor& o, const Span& span,
                                 std::int64_t time, int rows, int first_column, int columns) {
  for (int element = threadIdx.x % 128; element < rows * kPanelColumns; element += 128) {
    const int row = element / kPanelColumns;
    const int column = element % kPanelColumns;
    if (column >= columns) continue;
    const char* at = panel + panel_offset(row, column / 8) + column % 8 * 2;
    token_row<Element>(o, span.batch, time + row, span.head)[first_column + column] =
        *reinterpret_cast<const Element*>(at);
  }
}

/// Tokens outside every sequence: before the first (written by its CTA) and behind the last.
template <class Element>
__device__ void clear_uncovered(const GlaForwardProblem& problem, const Span& span, int group) {
  const std::int64_t n = span.sequence_head / problem.H;
  const auto clear = [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t time = begin; time < end; ++time) {
      Element* row = token_row<Element>(problem.o, 0, time, span.head);
      const int column = 64 * group + threadIdx.x % 128;
      if (threadIdx.x % 128 < 64 && column < problem.V) row[column] = Element(0.0f);
    }
  };
  const std::int64_t first = problem.N > 0 ? clamped_boundary(problem, 0) : problem.T;
  const std::int64_t last = problem.N > 0 ? clamped_boundary(problem, problem.N) : problem.T;
  if (n == 0) clear(0, first);
  if (n == problem.N - 1) clear(last, problem.T);
}

/// Ot of one chunk from its two parts -> o in device memory.
template <class Config>
__device__ void store_output(const GlaForwardParams& params, const Span& span, int chunk, int group,
                             float (&inter)[32], const float (&intra)[32],
                             const ChunkDecay<Config::kChunk>& decay, char* panel) {
  using Element = typename Config::Element;
#pragma unroll
  for (int block = 0; block < Config::kChunk / 8; ++block) {
    const float2 factor =
        *reinterpret_cast<const float2*>(&decay.from_state[fragment_column(block)]);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      float& value = inter[4 * block + i];
      value = value * (i % 2 ? factor.y : factor.x) + intra[4 * block + i];
    }
  }
#pragma unroll
  for (int step = 0; step < Config::kChunk / 16; ++step) {
    std::uint32_t packed[4];
    accumulator_to_operand<Element>(inter, step, packed);
    store_columns(panel, step, packed);
  }
  const std::int64_t time = span.begin + std::int64_t{chunk} * Config::kChunk;
  const int valid = span.valid_tokens(chunk, Config::kChunk);
  const int first_column = 64 * group;
  fence_shared_for_async_proxy();
  sync_warpgroup(2 + group);
  if (params.tma && (params.problem.cu_seqlens == nullptr || valid == Config::kChunk)) {
    if (threadIdx.x % 128 == 0) {
      store_panel(params.o_map, panel,
                  {first_column, span.head, static_cast<int>(time), span.batch});
    }
  } else {
    store_panel_rows<Element>(panel, params.problem.o, span, time, valid, first_column,
                              params.problem.V - first_column);
  }
}

template <class Config>
__device__ void run_state(const GlaForwardParams& params, ForwardShared<Config>& shared,
                          const Span& span, int group) {
  using Element = typename Config::Element;
  const GlaForwardProblem& problem = params.problem;
  const std::int64_t state_offset = span.sequence_head * problem.K * problem.V;
  char* o_panel = shared.o[group];

  float state[Config::kKeyDim / 2] = {};  // St, rows 64*group + [0,64)
  if (problem.initial_state != nullptr && problem.N > 0) {
    for_each_state_element<Config>(problem, group, [&](int i, int key, int value) {
      state[i] = problem.initial_state[state_offset + std::int64_t{key} * problem.V + value];
    });
  }
  if (problem.cu_seqlens != nullptr) clear_uncovered<Element>(problem, span, group);

  typename ForwardShared<Config>::InputRing::Position in;
  typename ForwardShared<Config>::IntraRing::Position p_at;
  for (int chunk = 0; chunk < span.chunks<Config>(); ++chunk, in.advance(), p_at.advance()) {
    const auto& stage = shared.stages[in.stage];
    const auto& decay = shared.decay[in.stage];
    const char* v_panel = stage.v + group * panel_bytes(Config::kChunk);
    shared.input.wait_full(in);
    shared.intra.wait_full(p_at);

    std::uint32_t state_operand[Config::kKeyDim / 16][4];
#pragma unroll
    for (int step = 0; step < Config::kKeyDim / 16; ++step) {
      accumulator_to_operand<Element>(state, step, state_operand[step]);
    }
    const float state_to_state = decay.state_to_state;
#pragma unroll
    for (float& value : state) value *= state_to_state;
    float inter[32];
    float intra[32];
    wgmma_begin();
#pragma unroll
    for (int step = 0; step < Config::kKeyDim / 16; ++step) {
      wgmma_rs<Element, 64, Major::K>(inter, state_operand[step], k_major_descriptor(stage.q, step),
                                      step > 0);
    }
    wgmma_commit();
#pragma unroll
    for (int step = 0; step < Config::kChunk / 16; ++step) {
      wgmma_ss<Element, 64, Major::MN, Major::K>(intra, mn_major_descriptor(v_panel, step),
                                                 k_major_descriptor(shared.p[p_at.stage], step),
                                                 step > 0);
    }
    wgmma_commit();

    // why: not earlier, so that the decayed V takes the registers of the state's operand.
    wgmma_wait<1>();
    std::uint32_t value_operand[Config::kChunk / 16][4];
#pragma unroll
    for (int step = 0; step < Config::kChunk / 16; ++step) {
      load_columns(v_panel, step, value_operand[step]);
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int token = fragment_column(2 * step + i / 2);
        const float2 factor = *reinterpret_cast<const float2*>(&decay.to_state[token]);
        const float2 pair = unpack_pair<Element>(value_operand[step][i]);
        value_operand[step][i] = pack_pair<Element>(pair.x * factor.x, pair.y * factor.y);
      }
    }
    wgmma_begin();
#pragma unroll
    for (int step = 0; step < Config::kChunk / 16; ++step) {
      wgmma_rs<Element, Config::kKeyDim, Major::MN>(state, value_operand[step],
                                                    mn_major_descriptor(stage.k, step), true);
    }
    wgmma_commit();

    // Under the state's product: the output.
    wgmma_wait<1>();
    fence_registers(inter);
    fence_registers(intra);
    arrive_once_per_warp(shared.intra.empty[p_at.stage]);
    if (threadIdx.x % 128 == 0) wait_stores_read();
    sync_warpgroup(2 + group);
    store_output<Config>(params, span, chunk, group, inter, intra, decay, o_panel);
    wgmma_wait<0>();
    fence_registers(state);
    arrive_once_per_warp(shared.input.empty[in.stage]);
  }

  if (problem.final_state != nullptr && problem.N > 0) {
    for_each_state_element<Config>(problem, group, [&](int i, int key, int value) {
      problem.final_state[state_offset + std::int64_t{key} * problem.V + value] = state[i];
    });
  }
  if (threadIdx.x % 128 == 0) wait_stores_read();
}

// --------------------------------------------------------------------------------------------
// kernel

template <class Config>
__global__ __launch_bounds__(Config::kThreads, 1) void gla_forward_kernel(
    const __grid_constant__ GlaForwardParams params) {
  extern __shared__ __align__(1024) char shared_memory[];
  auto& shared = *reinterpret_cast<ForwardShared<Config>*>(shared_memory);
  const int warpgroup = __shfl_sync(0xFFFFFFFFu, threadIdx.x / 128, 0);
  const int warp = __shfl_sync(0xFFFFFFFFu, threadIdx.x / 32, 0);

  if (threadIdx.x == 0) {
    constexpr int kWarpsPerGroup = 4;
    const int copy_arrivals = params.tma ? 1 : kGatherThreads / 32;
    shared.input.init(copy_arrivals + 1, kWarpsPerGroup * Config::kStateGroups);
    shared.intra.init(kWarpsPerGroup, kWarpsPerGroup * Config::kStateGroups);
    fence_barriers_initialised();
  }
  __syncthreads();

  const Span span = find_span(params.problem);
  if (warpgroup == 0) {
    cutlass::arch::warpgroup_reg_dealloc<Config::kLoadRegisters>();
    if (warp == 1) {
      prepare_decay(params, shared, span);
    } else if (!params.tma) {
      load_with_threads(params, shared, span, warp == 0 ? threadIdx.x : threadIdx.x - 32);
    } else if (threadIdx.x == 0) {
      load_with_tma(params, shared, span);
    }
  } else if (warpgroup == 1) {
    cutlass::arch::warpgroup_reg_dealloc<Config::kIntraRegisters>();
    run_intra(params, shared, span);
  } else {
    cutlass::arch::warpgroup_reg_alloc<Config::kStateRegisters>();
    run_state(params, shared, span, warpgroup - 2);
  }
}

template <class Config>
void launch_forward(const char* name, const GlaForwardParams& params, void* stream) {
  static_assert(sizeof(ForwardShared<Config>) <= Config::kSharedLimit);
  const GlaForwardProblem& problem = params.problem;
  const std::int64_t sequences = problem.N > 0 ? problem.N : 1;  // 1: someone must zero o
  launch_kernel(name, gla_forward_kernel<Config>,
                {static_cast<unsigned>(sequences * problem.H), Config::kThreads,
                 sizeof(ForwardShared<Config>)},
                static_cast<cudaStream_t>(stream), params);
}

}  // namespace tandem::cuda
