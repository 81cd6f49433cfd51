// What mamba2_block's forward and backward have in common: the layer's sizes, its parameters, what
// lies between its ops.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "blocks/buffers.h"
#include "blocks/check.h"
#include "ops/mamba2.h"
#include "tandem/blocks/mamba2_block.h"

namespace tandem::mamba2 {

struct Parameter {
  const char* name;
  TensorView Mamba2Block::*weight;
  const char* gradient_name;
  std::optional<TensorView> Mamba2BlockGradients::*gradient;
};
#define TANDEM_PARAMETER(name) \
  { #name, &Mamba2Block::name, "gradients." #name, &Mamba2BlockGradients::name }
/// All but conv1d_bias, which may be absent.
constexpr Parameter kParameters[] = {TANDEM_PARAMETER(input_norm),    TANDEM_PARAMETER(in_proj),
                                     TANDEM_PARAMETER(conv1d_weight), TANDEM_PARAMETER(dt_bias),
                                     TANDEM_PARAMETER(A_log),         TANDEM_PARAMETER(D),
                                     TANDEM_PARAMETER(norm),          TANDEM_PARAMETER(out_proj)};
#undef TANDEM_PARAMETER

struct Sizes {
  std::int64_t B, T, d, H, P, G, N;

  std::int64_t rows() const { return B * T; }
  std::int64_t inner() const { return H * P; }
  std::int64_t channels() const { return H * P + 2 * G * N; }
};

/// Checks what must hold before the ops can be called with parts of these tensors; they check the
/// rest.
inline Sizes sizes_of(const char* call, const Mamba2Block& block, const TensorView& x) {
  const auto is = [&](const char* name, const TensorView& view) {
    return Argument{call, name, view};
  };
  const auto must_divide = [&](const std::string& name, std::int64_t number, const char* what,
                               std::int64_t whole) {
    if (number >= 1 && whole % number == 0) return;
    refuse(call, name + " must be positive and divide " + what + " " + std::to_string(whole) +
                     ", got " + std::to_string(number));
  };
  check_tokens(is("x", x), "[B,T,d]", 3);
  check_rank(is("norm", block.norm), "[H*P]", 1);
  check_rank(is("in_proj", block.in_proj), "[H*P+E+H,d]", 2);
  check_rank(is("conv1d_weight", block.conv1d_weight), "[E,W]", 2);
  must_divide("heads", block.heads, "norm's", block.norm.shape[0]);
  must_divide("groups", block.groups, "heads =", block.heads);
  Sizes n = {.B = x.shape[0],
             .T = x.shape[1],
             .d = x.shape[2],
             .H = block.heads,
             .P = block.norm.shape[0] / block.heads,
             .G = block.groups,
             .N = 0};
  const std::int64_t states = block.conv1d_weight.shape[0] - n.inner();
  if (states < 2 * n.G || states % (2 * n.G) != 0) {
    refuse(call, "conv1d_weight must have rows for H*P = " + std::to_string(n.inner()) +
                     " channels and two of each of " + std::to_string(n.G) +
                     " groups' states, got " + std::to_string(block.conv1d_weight.shape[0]));
  }
  n.N = states / (2 * n.G);
  check_shape(is("in_proj", block.in_proj), "[H*P+E+H,d]", {n.inner() + n.channels() + n.H, n.d});
  check_data(is("in_proj", block.in_proj));
  check_vector(is("input_norm", block.input_norm), "[d]", n.d, x);
  check_vector(is("A_log", block.A_log), "[H]", n.H, x);
  check_vector(is("D", block.D), "[H]", n.H, x);
  check_eps(call, block.eps);
  return n;
}

/// What lies between the ops and a backward reads again.
struct Kept {
  TensorView z, before, xBC, dt, v, log_decay, o;  // before: xBC before its convolution
  // Of a forward that is differentiated, in the ops' words.
  std::optional<TensorView> rstd, dt_slope, gated, group_rstd;

  Kept(Buffers& buffers, const Sizes& n, DType dtype, bool differentiated) {
    const DType real = real_dtype(dtype);
    z = buffers.take(dtype, {n.rows(), n.inner()});
    before = buffers.take(dtype, {n.B, n.T, n.channels()});
    xBC = buffers.take(dtype, before.shape);
    dt = buffers.take(real, {n.rows(), n.H});
    v = buffers.take(dtype, {n.B, n.T, n.H, n.P});
    log_decay = buffers.take(real, {n.B, n.T, n.H});
    o = buffers.take(dtype, v.shape);
    if (!differentiated) return;
    rstd = buffers.take(real, {n.rows()});
    dt_slope = buffers.take(real, dt.shape);
    gated = buffers.take(dtype, z.shape);
    group_rstd = buffers.take(real, {n.rows(), n.G});
  }
};

inline std::size_t saved_bytes(const Sizes& n, const TensorView& x) {
  Buffers buffers(nowhere(), x.device);
  const Kept kept(buffers, n, x.dtype, true);
  return buffers.bytes();
}

class Arguments : public tandem::Arguments {
 public:
  using tandem::Arguments::Arguments, tandem::Arguments::add;

  void add(const char* conv, const char* state, const std::optional<Mamba2States>& states) {
    if (states) add(conv, states->conv), add(state, states->state);
  }
  void add(const Mamba2Block& block) {
    for (const Parameter& one : kParameters) add(one.name, block.*one.weight);
    add("conv1d_bias", block.conv1d_bias);
  }
};

/// Rows [first, first + count) of a matrix.
inline TensorView rows_of(const TensorView& matrix, std::int64_t first, std::int64_t count) {
  TensorView rows = matrix;
  rows.data = static_cast<char*>(matrix.data) + first * matrix.strides[0] * size_of(matrix.dtype);
  rows.shape[0] = count;
  return rows;
}

/// Columns from `first` on of [B,T,columns], as [B,T,heads,width].
inline TensorView heads_of(const TensorView& tokens, std::int64_t first, std::int64_t heads,
                           std::int64_t width) {
  const std::int64_t T = tokens.shape[1], columns = tokens.shape[2];
  return {static_cast<char*>(tokens.data) + first * size_of(tokens.dtype),
          tokens.dtype,
          {tokens.shape[0], T, heads, width},
          {T * columns, columns, width, 1},
          tokens.device};
}

inline Mamba2Heads heads_of(const Sizes& n, const Kept& kept) {
  Mamba2Heads heads;
  heads.dtype = kept.xBC.dtype;
  heads.device = kept.xBC.device;
  heads.M = n.rows();
  heads.H = static_cast<int>(n.H);
  heads.P = static_cast<int>(n.P);
  heads.x = {kept.xBC.data, n.channels()};
  return heads;
}

}  // namespace tandem::mamba2
