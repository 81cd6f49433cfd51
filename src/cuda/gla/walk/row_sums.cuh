// Row sums of x (.) o for the gradient by the decays (decay/row_sums.h): the state role writes what
// each of its warps has of them beside the chunk's P, and the intra role, which has time, adds them
// up when it needs that slot again.
#pragma once

#include "cuda/gla/walk/shared.cuh"
#include "cuda/parts/fragment.cuh"

namespace tandem::cuda::gla {

/// Adds the sums of two lanes: each lane keeps `kKept` of them, the lower lane the first ones.
template <int kKept, int kCount>
__device__ void halve_sums(float (&sums)[kCount][8]) {
  constexpr int kDistance = 4 * kKept;
  const bool upper = threadIdx.x % 32 & kDistance;
#pragma unroll
  for (int i = 0; i < kKept; ++i) {
#pragma unroll
    for (int n = 0; n < kCount; ++n) {
      const float given = upper ? sums[n][i] : sums[n][kKept + i];
      const float kept = upper ? sums[n][kKept + i] : sums[n][i];
      sums[n][i] = kept + __shfl_xor_sync(0xFFFFFFFFu, given, kDistance);
    }
  }
}

/// Sums of x (.) o over the columns that this thread, or with RowSumShared::kShares == 4 this warp,
/// has of one or two o. `kinds` names where in `rows` each belongs, `panel` holds the 64 columns of
/// x.
template <class Config, int kCount>
__device__ void put_row_sums(typename RowSumShared<Config>::Rows& rows,
                             const float (*const (&o)[kCount])[32], const int (&kinds)[kCount],
                             const char* panel) {
  using Sums = RowSumShared<Config>;
  const int lane = threadIdx.x % 32, warp = threadIdx.x % 128 / 32;
#pragma unroll
  for (int half = 0; half < 2; ++half) {  // why halves of the chunk: registers
    float sums[kCount][8] = {};  // of tokens 2c and 2c + 1 of each block of 8, c = lane % 4
#pragma unroll
    for (int step = 2 * half; step < 2 * half + 2; ++step) {
      std::uint32_t x[4];
      load_columns(panel, step, x);
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float2 pair = unpack_pair<typename Config::Element>(x[i]);
        const int block = 2 * (step - 2 * half) + i / 2;
#pragma unroll
        for (int n = 0; n < kCount; ++n) {
          sums[n][2 * block] += pair.x * (*o[n])[8 * step + 2 * i];
          sums[n][2 * block + 1] += pair.y * (*o[n])[8 * step + 2 * i + 1];
        }
      }
    }
    if constexpr (Sums::kShares == 32) {
#pragma unroll
      for (int n = 0; n < kCount; ++n) {
#pragma unroll
        for (int block = 0; block < 4; ++block) {
          const int share = 8 * warp + lane / 4;
          const int token = 32 * half + 8 * block + lane % 4 * 2;
          *reinterpret_cast<float2*>(&rows[kinds[n]][share][Sums::column(share, token)]) = {
              sums[n][2 * block], sums[n][2 * block + 1]};
        }
      }
    } else {
      // Sums over the 8 lanes that hold the same tokens; each lane keeps one token.
      halve_sums<4>(sums);
      halve_sums<2>(sums);
      halve_sums<1>(sums);
      const int token = 32 * half + lane / 8 * 8 + lane % 4 * 2 + lane / 4 % 2;
#pragma unroll
      for (int n = 0; n < kCount; ++n) {
        rows[kinds[n]][warp][Sums::column(warp, token)] = sums[n][0];
      }
    }
  }
}

/// Notes where the chunk's sums belong. The intra role, with the chunk's P.
template <class Config>
__device__ void place_row_sums(const WalkParams& params, WalkShared<Config>& shared,
                               const Item& item, int chunk,
                               typename WalkShared<Config>::IntraRing::Position at) {
  if constexpr (Config::kRowSums) {
    if (threadIdx.x % 128 != 0 || !wants_row_sums<Config>(params)) return;
    const GlaForwardProblem& problem = params.problem;
    const std::int64_t panel_index = item.first_column / 64;
    const std::int64_t row = (panel_index * problem.B + item.batch) * problem.H + item.head;
    shared.row_sums.places[at.stage][at.parity] = {
        row * problem.T + item.template chunk_begin<Config>(chunk),
        item.template valid_tokens<Config>(chunk)};
  }
}

/// Writes the sums of the chunk that had the slot before to device memory. The intra role, once the
/// slot is free again.
template <class Config>
__device__ void collect_row_sums(const WalkParams& params, WalkShared<Config>& shared,
                                 typename WalkShared<Config>::IntraRing::Position at) {
  if constexpr (Config::kRowSums) {
    using Sums = RowSumShared<Config>;
    if (!wants_row_sums<Config>(params)) return;
    const auto place = shared.row_sums.places[at.stage][at.parity ^ 1];
    int thread = threadIdx.x % 128;
    asm volatile("" : "+r"(thread));  // why: what follows from it would stay in registers all along
    const int token = thread % 64, kind = thread / 64;
    if (token >= place.tokens || kind >= Sums::kKinds) return;
    const std::int64_t of_panel = params.problem.B * params.problem.H * params.problem.T;
    float* to = (kind == 0 ? params.row_sums.rows : params.row_sums.state_rows) + place.row + token;
#pragma unroll
    for (int warpgroup = 0; warpgroup < Config::kStateWarpgroups; ++warpgroup, to += of_panel) {
      const auto& rows = shared.row_sums.rows[warpgroup][at.stage];
      const auto sum = [&](int of) {
        float sums[4] = {};
#pragma unroll
        for (int share = 0; share < Sums::kShares; ++share) {
          sums[share % 4] += rows[of][share][Sums::column(share, token)];
        }
        return sums[0] + sums[1] + (sums[2] + sums[3]);
      };
      float own = sum(kind);
      // With one accumulator, the sum inside the chunk is that of all of o less that from the
      // state.
      if constexpr (Sums::kKinds == 2 && Config::kOneOutputAccumulator) {
        if (kind == 0) own -= sum(1);
      }
      *to = own;
    }
  }
}

}  // namespace tandem::cuda::gla
