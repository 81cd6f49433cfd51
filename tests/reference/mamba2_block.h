// The fp64 definition of mamba2_block: a token after the other, as plain as the formula.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <optional>
#include <vector>

#include "reference/block_rows.h"
#include "tandem/blocks/mamba2_block.h"

namespace tandem::reference {

struct Mamba2BlockResult {
  Row out;    // [B,T,d]
  Row conv;   // [N,E,W-1]
  Row state;  // [N,H,N,P]
};

/// Of x [B,T,d] on the host; `offsets` are where packed sequences begin, and the end of the last.
inline Mamba2BlockResult mamba2_block(const Mamba2Block& block, const TensorView& x,
                                      const std::optional<Mamba2States>& initial = std::nullopt,
                                      std::vector<std::int64_t> offsets = {}) {
  const auto silu = [](double z) { return z / (1 + std::exp(-z)); };
  const std::int64_t B = x.shape[0], T = x.shape[1], d = x.shape[2];
  const std::int64_t H = block.heads, G = block.groups, inner = block.norm.shape[0], P = inner / H;
  const std::int64_t channels = block.conv1d_weight.shape[0], W = block.conv1d_weight.shape[1];
  const std::int64_t N = (channels - inner) / (2 * G);
  if (offsets.empty()) {
    for (std::int64_t b = 0; b <= B; ++b) offsets.push_back(b * T);
  }
  const TensorView rows = TensorView::contiguous(x.data, x.dtype, {B * T, d});
  const Row dt_bias = read_vector(block.dt_bias), A_log = read_vector(block.A_log);
  const Row D = read_vector(block.D), norm_weight = read_vector(block.norm);
  Mamba2BlockResult result;
  for (std::size_t n = 0; n + 1 < offsets.size(); ++n) {
    Row conv(channels * (W - 1), 0.0), state(H * N * P, 0.0);
    const auto begin_with = [&](Row& values, const TensorView& from) {
      for (std::size_t i = 0; i < values.size(); ++i) {
        values[i] =
            element(from.dtype, from.data, static_cast<std::int64_t>(n * values.size() + i));
      }
    };
    if (initial) begin_with(conv, initial->conv), begin_with(state, initial->state);
    for (std::int64_t t = offsets[n]; t < offsets[n + 1]; ++t) {
      const Row x_t = read_row(rows, t, 0, d), normed = norm(block.input_norm, block.eps, x_t);
      const Row projected = product(block.in_proj, std::nullopt, normed);
      Row xBC;
      for (std::int64_t c = 0; c < channels; ++c) {
        const Row taps = read_row(block.conv1d_weight, c, 0, W);
        double* const past = &conv[c * (W - 1)];
        const double now = projected[inner + c];
        double z = block.conv1d_bias ? read_vector(*block.conv1d_bias)[c] : 0.0;
        for (std::int64_t w = 0; w + 1 < W; ++w) z += taps[w] * past[w];
        xBC.push_back(silu(z + taps[W - 1] * now));
        for (std::int64_t w = 0; w + 2 < W; ++w) past[w] = past[w + 1];
        past[W - 2] = now;
      }
      Row gated;
      for (std::int64_t h = 0; h < H; ++h) {
        const double raw = projected[inner + channels + h] + dt_bias[h];
        const double dt = std::clamp(std::log1p(std::exp(raw)), block.dt_min, block.dt_max);
        const double* const B_t = &xBC[inner + h / (H / G) * N];
        const double* const C_t = B_t + G * N;
        for (std::int64_t j = 0; j < P; ++j) {
          const double value = xBC[h * P + j];
          double y = D[h] * value;
          for (std::int64_t i = 0; i < N; ++i) {
            double& s = state[(h * N + i) * P + j];
            s = std::exp(-dt * std::exp(A_log[h])) * s + B_t[i] * dt * value;
            y += C_t[i] * s;
          }
          gated.push_back(y * silu(projected[h * P + j]));
        }
      }
      Row a;
      for (std::int64_t first = 0; first < inner; first += inner / G) {
        const Row group(gated.begin() + first, gated.begin() + first + inner / G);
        const double rstd = rms_norm_rstd(group, block.eps);
        for (std::int64_t j = 0; j < inner / G; ++j) {
          a.push_back(group[j] * rstd * norm_weight[first + j]);
        }
      }
      const Row mixed = product(block.out_proj, std::nullopt, a);
      for (std::int64_t i = 0; i < d; ++i) result.out.push_back(x_t[i] + mixed[i]);
    }
    result.conv.insert(result.conv.end(), conv.begin(), conv.end());
    result.state.insert(result.state.end(), state.begin(), state.end());
  }
  return result;
}

}  // namespace tandem::reference
