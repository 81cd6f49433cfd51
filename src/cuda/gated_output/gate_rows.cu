// The kernels of gated_output's gate and of the norm of groups. Bound by memory: floor o, the gate
// and what is made of them once.
//
// Threads take eight neighbouring columns. A group is held in registers by a team of threads: lanes
// of a warp or, of more than 512 columns, a CTA. Rows that begin anywhere, groups that are no whole
// eights and such as no CTA holds go element by element, a CTA per row, twice where there is a
// norm.
#include "cuda/gated_output/gate_rows.h"

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <algorithm>
#include <bit>
#include <initializer_list>

#include "cuda/gated_output/gate_elements.cuh"
#include "cuda/gemm/sum_slices.h"
#include "cuda/parts/stream_order.cuh"
#include "cuda/row_norm/row.cuh"
#include "cuda/runtime/launch.h"
#include "cuda/runtime/plan.h"

namespace tandem::cuda::gated_output {
namespace {

constexpr int kThreads = 256;      // where teams are lanes
constexpr int kMostThreads = 512;  // of a team
constexpr int kMostHeld = 2;       // eights of a thread

/// Eights of o, the gate and d_gated as they lie in memory. A gate that is not there is 1.
template <class Element>
struct Inputs {
  Words<Element> o, gate, d_gated;

  __device__ void load(const GatedRows& rows, std::int64_t row, int column) {
    o = load_words(row_of<const Element>(rows.o, row) + column, true);
    if (rows.gate.data != nullptr) {
      gate = load_words(row_of<const Element>(rows.gate, row) + column, true);
    }
  }
  __device__ void load(const GatedRows& rows, const MatrixTensor& d, std::int64_t row, int column) {
    load(rows, row, column);
    d_gated = load_words(row_of<const Element>(d, row) + column, true);
  }
  template <OutputGate kActivation>
  __device__ void apply(const GatedRows& rows, Gate (&f)[8]) const {
    // why before the loop: with a branch for each element none has its exponential beside
    // another's.
    if (rows.gate.data == nullptr) {
#pragma unroll
      for (Gate& one : f) one = {1.0f, 0.0f};
      return;
    }
    float g[8];
    unpack(gate, g);
#pragma unroll
    for (int j = 0; j < 8; ++j) f[j] = apply_gate<kActivation>(g[j]);
  }
};

// Without a group norm.

template <class Element>
__global__ __launch_bounds__(kThreads) void gate_kernel(const __grid_constant__ GateParams params) {
  follow_stream();
  const int per_row = params.d / 8;
  const std::int64_t at = blockIdx.x * std::int64_t{kThreads} + threadIdx.x;
  const std::int64_t row = at / per_row;
  if (row >= params.M) return;
  const int column = static_cast<int>(at % per_row) * 8;
  with_gate(params.rows.gate_activation, [&](auto activation) {
    Inputs<Element> in;
    in.load(params.rows, row, column);
    float o[8];
    Gate f[8];
    unpack(in.o, o);
    in.template apply<decltype(activation)::value>(params.rows, f);
#pragma unroll
    for (int j = 0; j < 8; ++j) o[j] *= f[j].value;
    store_words(row_of<Element>(params.gated, row) + column, o);
  });
}

template <class Element>
__global__ __launch_bounds__(kThreads) void gate_gradient_kernel(
    const __grid_constant__ GateGradientParams params) {
  follow_stream();
  const int per_row = params.d / 8;
  const std::int64_t at = blockIdx.x * std::int64_t{kThreads} + threadIdx.x;
  const std::int64_t row = at / per_row;
  if (row >= params.M) return;
  const int column = static_cast<int>(at % per_row) * 8;
  with_gate(params.rows.gate_activation, [&](auto activation) {
    Inputs<Element> in;
    in.load(params.rows, params.d_gated, row, column);
    float o[8], d[8];
    Gate f[8];
    unpack(in.o, o);
    unpack(in.d_gated, d);
    in.template apply<decltype(activation)::value>(params.rows, f);
#pragma unroll
    for (int j = 0; j < 8; ++j) {
      const Gradients made = Gradients::without_norm(o[j], f[j], d[j]);
      o[j] = made.d_o;
      d[j] = made.d_gate;
    }
    if (params.d_o.data != nullptr) store_words(row_of<Element>(params.d_o, row) + column, o);
    if (params.d_gate.data != nullptr) {
      store_words(row_of<Element>(params.d_gate, row) + column, d);
    }
  });
}

// With one, by teams.

/// How groups are held: `lanes` threads each, `per_cta` teams that take neighbouring rows.
struct Teams {
  int groups = 0;
  int width = 0;
  int held = 1;
  int lanes = 0;
  int per_cta = 1;

  Teams(int d, int group_width) : groups(d / group_width), width(group_width) {
    const int eights = width / 8;
    const bool of_lanes = eights <= kMostHeld * 32;
    held = eights > (of_lanes ? 32 : kMostThreads) ? kMostHeld : 1;
    const int wanted = static_cast<int>(ceil_div(eights, held));
    lanes = static_cast<int>(of_lanes ? std::bit_ceil(static_cast<unsigned>(wanted))
                                      : ceil_div(wanted, 32) * 32);
    if (of_lanes) per_cta = kThreads / lanes;
  }
  int threads() const { return lanes * per_cta; }
  /// Slices of rows of a gradient: as many CTAs as an H200 holds at once, or few more.
  int slices(std::int64_t M) const {
    const int ctas = 132 * (per_cta > 1 ? 12 : 2);
    return static_cast<int>(
        std::clamp<std::int64_t>(ceil_div(M, per_cta), 1, std::max(ctas / groups, 1)));
  }
};

/// Sums over a team, in one order. All threads of the CTA.
__device__ float sum_team(float value, int lanes) {
  if (lanes <= 32) {
    for (int distance = lanes / 2; distance > 0; distance /= 2) {
      value += __shfl_xor_sync(0xFFFFFFFFu, value, distance);
    }
    return value;
  }
  __shared__ float sums[kMostThreads / 32];
  value = sum_warp(value);
  __syncthreads();  // the sums before have been read
  if (threadIdx.x % 32 == 0) sums[threadIdx.x / 32] = value;
  __syncthreads();
  float sum = 0.0f;
  for (int warp = 0; warp < lanes / 32; ++warp) sum += sums[warp];
  return sum;
}

/// A thread's place in its group.
struct Place {
  int group, lane, team;

  __device__ explicit Place(const Teams& teams)
      : group(static_cast<int>(blockIdx.x) % teams.groups),
        lane(static_cast<int>(threadIdx.x) % teams.lanes),
        team(static_cast<int>(threadIdx.x) / teams.lanes) {}
  /// The first column of eight number i: in the group, or in the row.
  __device__ int in_group(const Teams& teams, int i) const { return 8 * (lane + i * teams.lanes); }
  __device__ int column(const Teams& teams, int i) const {
    return group * teams.width + in_group(teams, i);
  }
};

/// Loads the weights of eight number i, which begin at a multiple of 16 bytes.
template <class Element>
__device__ void load_weights(const GatedRows& rows, const Teams& teams, const Place& place, int i,
                             float (&weights)[8]) {
  const int at = rows.group_weight_repeats ? place.in_group(teams, i) : place.column(teams, i);
  const void* const from = rows.group_norm_weight.data;
  if (rows.group_norm_weight.dtype == DType::kFloat32) {
    unpack(load_words(static_cast<const float*>(from) + at, true), weights);
  } else {
    unpack(load_words(static_cast<const Element*>(from) + at, true), weights);
  }
}

struct TeamGateParams : GateParams {
  Teams teams;
};

template <class Element, int kHeld>
__global__ __launch_bounds__(kMostThreads) void team_gate_kernel(
    const __grid_constant__ TeamGateParams params) {
  follow_stream();
  const Teams& teams = params.teams;
  const GatedRows& rows = params.rows;
  const Place place(teams);
  const std::int64_t row =
      std::int64_t{blockIdx.x / static_cast<unsigned>(teams.groups)} * teams.per_cta + place.team;
  with_gate(rows.gate_activation, [&](auto activation) {
    Inputs<Element> in[kHeld] = {};
    const auto inside = [&](int i) {
      return row < params.M && place.in_group(teams, i) < teams.width;
    };
#pragma unroll
    for (int i = 0; i < kHeld; ++i) {
      if (inside(i)) in[i].load(rows, row, place.column(teams, i));
    }
    float rstd = 0.0f;
    float o[8];
    Gate f[8];
    if (params.given_rstd.data != nullptr) {
      if (row < params.M) rstd = row_of<float>(params.given_rstd, row)[place.group];
    } else {
      float squares = 0.0f;
#pragma unroll
      for (int i = 0; i < kHeld; ++i) {
        unpack(in[i].o, o);
        in[i].template apply<decltype(activation)::value>(rows, f);
#pragma unroll
        for (int j = 0; j < 8; ++j) {
          const float y = rows.norm_behind_gate ? o[j] * f[j].value : o[j];
          if (inside(i)) squares = fmaf(y, y, squares);
        }
      }
      rstd = rsqrtf(__fdividef(sum_team(squares, teams.lanes), static_cast<float>(teams.width)) +
                    params.group_eps);
      if (params.group_rstd.data != nullptr && row < params.M && place.lane == 0) {
        row_of<float>(params.group_rstd, row)[place.group] = rstd;
      }
    }
    if (params.gated.data == nullptr) return;
#pragma unroll
    for (int i = 0; i < kHeld; ++i) {
      if (!inside(i)) continue;
      float weights[8];
      load_weights<Element>(rows, teams, place, i, weights);
      unpack(in[i].o, o);
      in[i].template apply<decltype(activation)::value>(rows, f);
#pragma unroll
      for (int j = 0; j < 8; ++j) o[j] *= rstd * weights[j] * f[j].value;
      store_words(row_of<Element>(params.gated, row) + place.column(teams, i), o);
    }
  });
}

struct TeamGradientParams : GateGradientParams {
  Teams teams;
  int slices = 1;
};

/// A CTA per group and slice of rows; sums of the weight's gradient stay in registers. why a kernel
/// for either order of gate and norm: told apart for each element, it takes a tenth more
/// instructions.
template <class Element, int kHeld, bool kBehindGate>
__global__ __launch_bounds__(kHeld == 1 ? 768 : 640) void team_gate_gradient_kernel(
    const __grid_constant__ TeamGradientParams params) {
  __shared__ float shared[kThreads][8 + 1];
  follow_stream();
  const Teams& teams = params.teams;
  const GatedRows& rows = params.rows;
  const Place place(teams);
  const std::int64_t steps = (params.M + teams.per_cta - 1) / teams.per_cta;
  const std::int64_t slice = blockIdx.x / static_cast<unsigned>(teams.groups);
  const std::int64_t end = steps * (slice + 1) / params.slices;
  float weights[kHeld][8] = {}, sums[kHeld][8] = {};
#pragma unroll
  for (int i = 0; i < kHeld; ++i) {
    if (place.in_group(teams, i) < teams.width) {
      load_weights<Element>(rows, teams, place, i, weights[i]);
    }
  }
  with_gate(rows.gate_activation, [&](auto activation) {
#pragma unroll 1
    for (std::int64_t step = steps * slice / params.slices; step < end; ++step) {
      const std::int64_t row = step * teams.per_cta + place.team;
      const auto inside = [&](int i) {
        return row < params.M && place.in_group(teams, i) < teams.width;
      };
      const float rstd = row < params.M ? row_of<float>(params.group_rstd, row)[place.group] : 0.0f;
      Inputs<Element> in[kHeld] = {};
#pragma unroll
      for (int i = 0; i < kHeld; ++i) {
        if (inside(i)) in[i].load(rows, params.d_gated, row, place.column(teams, i));
      }
      float o[8], d[8], dot = 0.0f;
      Gate f[8];
      const auto unpack_eight = [&](int i) {
        keep_packed(in[i].o);
        keep_packed(in[i].gate);
        keep_packed(in[i].d_gated);
        unpack(in[i].o, o);
        unpack(in[i].d_gated, d);
        in[i].template apply<decltype(activation)::value>(rows, f);
      };
#pragma unroll
      for (int i = 0; i < kHeld; ++i) {
        if (!inside(i)) continue;
        unpack_eight(i);
#pragma unroll
        for (int j = 0; j < 8; ++j) {  // in either order of gate and norm, but for rstd
          const float product = d[j] * f[j].value * o[j];
          sums[i][j] = fmaf(product, rstd, sums[i][j]);
          dot = fmaf(product, weights[i][j], dot);
        }
      }
      if (params.d_o.data == nullptr && params.d_gate.data == nullptr) continue;
      const float mean =
          rstd * __fdividef(sum_team(dot, teams.lanes), static_cast<float>(teams.width));
      const float c = rstd * mean;
#pragma unroll
      for (int i = 0; i < kHeld; ++i) {
        if (!inside(i)) continue;
        unpack_eight(i);
#pragma unroll
        for (int j = 0; j < 8; ++j) {
          const float u = d[j] * weights[i][j];
          const Gradients made = Gradients::of_norm<kBehindGate>(o[j], f[j], u, rstd, c);
          o[j] = made.d_o;
          d[j] = made.d_gate;
        }
        const int column = place.column(teams, i);
        if (params.d_o.data != nullptr) {
          store_words(row_of<Element>(params.d_o, row) + column, o);
        }
        if (params.d_gate.data != nullptr) {
          store_words(row_of<Element>(params.d_gate, row) + column, d);
        }
      }
    }
  });
  if (params.d_group_norm_weight.data == nullptr) return;
  float* to = params.partial_sums + slice * params.d;
#pragma unroll
  for (int i = 0; i < kHeld; ++i) {
    if (teams.per_cta > 1) {  // the teams' sums, in their order
      __syncthreads();
#pragma unroll
      for (int j = 0; j < 8; ++j) shared[threadIdx.x][j] = sums[i][j];
      __syncthreads();
      if (place.team > 0) continue;
      for (int team = 1; team < teams.per_cta; ++team) {
#pragma unroll
        for (int j = 0; j < 8; ++j) sums[i][j] += shared[team * teams.lanes + place.lane][j];
      }
    }
    if (place.in_group(teams, i) < teams.width)
      store_eight(to + place.column(teams, i), 8, sums[i]);
  }
}

/// Whether rows consist of whole eights at multiples of 16 bytes, and a CTA holds a group.
bool takes_eights(const GatedRows& rows, int d, std::initializer_list<MatrixTensor> others) {
  const auto lies_well = [](const MatrixTensor& matrix) {
    return reinterpret_cast<std::uintptr_t>(matrix.data) % 16 == 0 && matrix.row_stride % 8 == 0;
  };
  return d % 8 == 0 && rows.group_width % 8 == 0 &&
         rows.group_width <= 8 * kMostThreads * kMostHeld && lies_well(rows.o) &&
         lies_well(rows.gate) && lies_well({const_cast<void*>(rows.group_norm_weight.data), 0}) &&
         std::all_of(others.begin(), others.end(), lies_well);
}

template <class Params>
void launch(const char* name, void (*kernel)(Params), const Params& params, std::int64_t blocks,
            int threads, void* stream) {
  launch_kernel(
      name, kernel,
      {.blocks = static_cast<unsigned>(blocks), .threads = static_cast<unsigned>(threads)},
      static_cast<cudaStream_t>(stream), params);
}

int any_slices(std::int64_t M) { return static_cast<int>(std::clamp<std::int64_t>(M / 32, 1, 64)); }

/// Returns the number of slices whose sums are there.
template <class Element>
int differentiate(const char* name, const GateGradientParams& params, void* stream) {
  const GatedRows& rows = params.rows;
  if (takes_eights(rows, params.d, {params.d_gated, params.d_o, params.d_gate})) {
    if (rows.group_width == 0) {
      launch(name, gate_gradient_kernel<Element>, params,
             ceil_div(params.M * (params.d / 8), kThreads), kThreads, stream);
      return 0;
    }
    const Teams teams(params.d, rows.group_width);
    const TeamGradientParams with_teams{params, teams, teams.slices(params.M)};
    const auto kernel = [&](auto behind_gate) {
      constexpr bool kBehindGate = decltype(behind_gate)::value;
      return teams.held == 1 ? team_gate_gradient_kernel<Element, 1, kBehindGate>
                             : team_gate_gradient_kernel<Element, 2, kBehindGate>;
    };
    launch(name, rows.norm_behind_gate ? kernel(std::true_type()) : kernel(std::false_type()),
           with_teams, std::int64_t{with_teams.slices} * teams.groups, teams.threads(), stream);
    return with_teams.slices;
  }
  if (params.d_o.data != nullptr || params.d_gate.data != nullptr) {
    launch(name, any_gate_gradient_kernel<Element>, params, params.M, kRowThreads, stream);
  }
  if (params.d_group_norm_weight.data == nullptr) return 0;
  const int slices = any_slices(params.M);
  launch_kernel(name, any_group_weight_gradient_kernel<Element>,
                {.blocks = static_cast<unsigned>(ceil_div(params.d, kRowThreads)),
                 .blocks_y = static_cast<unsigned>(slices),
                 .threads = kRowThreads},
                static_cast<cudaStream_t>(stream), params);
  return slices;
}

}  // namespace

int most_group_slices(std::int64_t M, int d, int group_width) {
  const bool eights = group_width % 8 == 0 && group_width <= 8 * kMostThreads * kMostHeld;
  return std::max(eights ? Teams(d, group_width).slices(M) : 0, any_slices(M));
}

template <class Element>
void launch_gate(const char* name, const GateParams& params, void* stream) {
  const GatedRows& rows = params.rows;
  if (params.M == 0 || params.d == 0) return;
  if (!takes_eights(rows, params.d, {params.gated})) {
    launch(name, any_gate_kernel<Element>, params, params.M, kRowThreads, stream);
  } else if (rows.group_width == 0) {
    launch(name, gate_kernel<Element>, params, ceil_div(params.M * (params.d / 8), kThreads),
           kThreads, stream);
  } else {
    const Teams teams(params.d, rows.group_width);
    launch(name, teams.held == 1 ? team_gate_kernel<Element, 1> : team_gate_kernel<Element, 2>,
           TeamGateParams{params, teams}, ceil_div(params.M, teams.per_cta) * teams.groups,
           teams.threads(), stream);
  }
}

template <class Element>
void launch_gate_gradient(const char* name, const GateGradientParams& params, void* stream) {
  int slices = 0;
  if (params.M > 0 && params.d > 0) slices = differentiate<Element>(name, params, stream);
  if (params.d_group_norm_weight.data == nullptr) return;
  // Where groups share their weights, each of them counts as a slice.
  const int columns = params.rows.group_weight_repeats ? params.rows.group_width : params.d;
  gemm::SumSlicesParams sum;
  sum.partial_sums = params.partial_sums;
  sum.slices = columns > 0 ? slices * (params.d / columns) : 0;
  sum.rows = 1;
  sum.columns = columns;
  sum.result = {params.d_group_norm_weight.data, columns};
  sum.fp32 = params.d_group_norm_weight.dtype == DType::kFloat32;
  sum.accumulate = params.accumulate;
  gemm::launch_sum_slices<Element>(name, sum, stream);
}

#define TANDEM_INSTANCES(Element)                                            \
  template void launch_gate<Element>(const char*, const GateParams&, void*); \
  template void launch_gate_gradient<Element>(const char*, const GateGradientParams&, void*);

TANDEM_INSTANCES(__nv_bfloat16)
#ifndef TANDEM_CUDA_DEV
TANDEM_INSTANCES(__half)
#endif

}  // namespace tandem::cuda::gated_output
