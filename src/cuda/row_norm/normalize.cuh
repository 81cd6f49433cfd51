// The forward of a row norm by a team of threads.
#pragma once

#include "cuda/parts/row.cuh"
#include "cuda/row_norm/row_norm.h"

namespace tandem::cuda::row_norm {

/// Normalises rows [first, first + kRows) before `end`, at once. All threads of the team. Of the
/// weights kHeldWeights are held.
template <class Team, class Element, bool kRegular, bool kCenters, int kHeld, int kRows,
          int kHeldWeights = kHeld>
__device__ void normalize_rows(const NormalizeParams& params, std::int64_t first,
                               std::int64_t end) {
  const int d = params.d;
  RowPart<Team, Element, kRegular, kHeld> x[kRows];
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
    const Element* row = first + r < end ? row_of<const Element>(params.x, first + r) : nullptr;
    x[r] = RowPart<Team, Element, kRegular, kHeld>(row, d);
  }
  const WeightPart<Team, Element, kRegular, kHeldWeights> weight(
      params.weight.data, params.weight.dtype == DType::kFloat32, d, 1.0f);
  const WeightPart<Team, Element, kRegular, kHeldWeights> bias(
      kCenters ? params.bias.data : nullptr, params.bias.dtype == DType::kFloat32, d, 0.0f);

  const auto sum_rows = [&](float(&sums)[kRows], auto term) {
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      sums[r] = 0.0f;
      float values[8];
      const auto add = [&](int i) {
#pragma unroll
        for (int j = 0; j < 8; ++j) {
          if (Team::column(i) + (kRegular ? 0 : j) < d) sums[r] += term(r, values[j]);
        }
      };
      Team::template for_eights<kHeld>(
          d, [&](int i) { x[r].get(i, values), add(i); },
          [&](int i) { x[r].reload(i, values), add(i); });
    }
    Team::sum(sums);
#pragma unroll
    for (float& sum : sums) sum = __fdividef(sum, static_cast<float>(d));  // never a call
  };
  float mean[kRows] = {}, rstd[kRows];
  if constexpr (kCenters) sum_rows(mean, [](int, float value) { return value; });
  if (params.rstd != nullptr) {
#pragma unroll
    for (int r = 0; r < kRows; ++r) rstd[r] = first + r < end ? params.rstd[first + r] : 0.0f;
  } else {
    sum_rows(rstd, [&](int r, float value) { return (value - mean[r]) * (value - mean[r]); });
#pragma unroll
    for (float& value : rstd) value = rsqrtf(value + static_cast<float>(params.eps));
  }
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
    const std::int64_t row = first + r;
    if (row >= end) continue;
    if (Team::thread() == 0) {
      if (params.kept_mean != nullptr) params.kept_mean[row] = mean[r];
      if (params.kept_rstd != nullptr) params.kept_rstd[row] = rstd[r];
    }
    if (params.n.data == nullptr) continue;
    Element* to = row_of<Element>(params.n, row);
    float values[8], weights[8], biases[8];
    const auto store = [&](int i) {
#pragma unroll
      for (int j = 0; j < 8; ++j) {
        const float m = (values[j] - mean[r]) * rstd[r];
        values[j] = kCenters ? fmaf(m, weights[j], biases[j]) : m * weights[j];
      }
      store_eight(to + Team::column(i), d - Team::column(i), values);
    };
    Team::template for_eights<kHeld>(
        d,
        [&](int i) { x[r].get(i, values), weight.get(i, weights), bias.get(i, biases), store(i); },
        [&](int i) {
          x[r].reload(i, values), weight.reload(i, weights), bias.reload(i, biases), store(i);
        });
  }
}

}  // namespace tandem::cuda::row_norm
