// The kernels of gated_output's gate for rows that begin anywhere and groups of any width, element
// by element: a CTA per row, which it passes over twice where there is a norm.
#pragma once

#include "cuda/gated_output/gate.cuh"
#include "cuda/gated_output/gate_rows.h"
#include "cuda/parts/stream_order.cuh"
#include "cuda/row_norm/row.cuh"

namespace tandem::cuda::gated_output {

constexpr int kRowThreads = 128;
using AnyCta = RowCta<kRowThreads>;

template <class Element>
__device__ float load(const MatrixTensor& matrix, std::int64_t row, int column) {
  return static_cast<float>(row_of<const Element>(matrix, row)[column]);
}
template <class Element, OutputGate kActivation>
__device__ Gate gate_at(const GatedRows& rows, std::int64_t row, int column) {
  if (rows.gate.data == nullptr) return {1.0f, 0.0f};
  return apply_gate<kActivation>(load<Element>(rows.gate, row, column));
}
template <class Element>
__device__ float weight_at(const GatedRows& rows, int column) {
  const int at = rows.group_weight_repeats ? column % rows.group_width : column;
  const WeightVector& from = rows.group_norm_weight;
  return from.dtype == DType::kFloat32
             ? static_cast<const float*>(from.data)[at]
             : static_cast<float>(static_cast<const Element*>(from.data)[at]);
}

/// Calls body(column) for the columns of a row, or of a group of it, that a thread takes.
template <class Body>
__device__ void for_columns(int begin, int end, const Body& body) {
  for (int column = begin + static_cast<int>(threadIdx.x); column < end; column += kRowThreads) {
    body(column);
  }
}

template <class Element>
__global__ __launch_bounds__(kRowThreads) void any_gate_kernel(
    const __grid_constant__ GateParams params) {
  follow_stream();
  const GatedRows& rows = params.rows;
  const std::int64_t row = blockIdx.x;
  const int width = rows.group_width > 0 ? rows.group_width : params.d;
  with_gate(rows.gate_activation, [&](auto activation) {
    constexpr OutputGate kActivation = decltype(activation)::value;
    for (int group = 0; group * width < params.d; ++group) {
      const int begin = group * width, end = begin + width;
      float rstd = 1.0f;
      if (params.given_rstd.data != nullptr) {
        rstd = row_of<float>(params.given_rstd, row)[group];
      } else if (rows.group_width > 0) {
        float squares[1] = {};
        for_columns(begin, end, [&](int column) {
          float y = load<Element>(rows.o, row, column);
          if (rows.norm_behind_gate) y *= gate_at<Element, kActivation>(rows, row, column).value;
          squares[0] = fmaf(y, y, squares[0]);
        });
        AnyCta::sum(squares);
        rstd = rsqrtf(squares[0] / static_cast<float>(width) + params.group_eps);
        if (params.group_rstd.data != nullptr && threadIdx.x == 0) {
          row_of<float>(params.group_rstd, row)[group] = rstd;
        }
      }
      if (params.gated.data == nullptr) continue;
      for_columns(begin, end, [&](int column) {
        float a = load<Element>(rows.o, row, column);
        if (rows.group_width > 0) a *= rstd * weight_at<Element>(rows, column);
        a *= gate_at<Element, kActivation>(rows, row, column).value;
        row_of<Element>(params.gated, row)[column] = static_cast<Element>(a);
      });
    }
  });
}

template <class Element>
__global__ __launch_bounds__(kRowThreads) void any_gate_gradient_kernel(
    const __grid_constant__ GateGradientParams params) {
  follow_stream();
  const GatedRows& rows = params.rows;
  const std::int64_t row = blockIdx.x;
  const bool norms = rows.group_width > 0;
  const int width = norms ? rows.group_width : params.d;
  with_gate(rows.gate_activation, [&](auto activation) {
    constexpr OutputGate kActivation = decltype(activation)::value;
    for (int group = 0; group * width < params.d; ++group) {
      const int begin = group * width, end = begin + width;
      float rstd = 1.0f, mean[1] = {};
      if (norms) {
        rstd = row_of<float>(params.group_rstd, row)[group];
        for_columns(begin, end, [&](int column) {
          const float y = load<Element>(rows.o, row, column) *
                          gate_at<Element, kActivation>(rows, row, column).value;
          mean[0] = fmaf(load<Element>(params.d_gated, row, column) * y * rstd,
                         weight_at<Element>(rows, column), mean[0]);
        });
        AnyCta::sum(mean);
        mean[0] /= static_cast<float>(width);
      }
      for_columns(begin, end, [&](int column) {
        const float o = load<Element>(rows.o, row, column);
        const float d = load<Element>(params.d_gated, row, column);
        const Gate f = gate_at<Element, kActivation>(rows, row, column);
        Gradients made = Gradients::without_norm(o, f, d);
        if (norms) {
          const float u = d * weight_at<Element>(rows, column), c = rstd * mean[0];
          made = rows.norm_behind_gate ? Gradients::of_norm<true>(o, f, u, rstd, c)
                                       : Gradients::of_norm<false>(o, f, u, rstd, c);
        }
        if (params.d_o.data != nullptr) {
          row_of<Element>(params.d_o, row)[column] = static_cast<Element>(made.d_o);
        }
        if (params.d_gate.data != nullptr) {
          row_of<Element>(params.d_gate, row)[column] = static_cast<Element>(made.d_gate);
        }
      });
    }
  });
}

/// A thread per column of a slice of rows.
template <class Element>
__global__ __launch_bounds__(kRowThreads) void any_group_weight_gradient_kernel(
    const __grid_constant__ GateGradientParams params) {
  follow_stream();
  const GatedRows& rows = params.rows;
  const int column = static_cast<int>(blockIdx.x * kRowThreads + threadIdx.x);
  if (column >= params.d) return;
  const std::int64_t end = params.M * (blockIdx.y + 1) / gridDim.y;
  with_gate(rows.gate_activation, [&](auto activation) {
    float sum = 0.0f;
#pragma unroll 4
    for (std::int64_t row = params.M * blockIdx.y / gridDim.y; row < end; ++row) {
      const float y = load<Element>(rows.o, row, column) *
                      gate_at<Element, decltype(activation)::value>(rows, row, column).value;
      sum = fmaf(load<Element>(params.d_gated, row, column) * y,
                 row_of<float>(params.group_rstd, row)[column / rows.group_width], sum);
    }
    params.partial_sums[std::int64_t{blockIdx.y} * params.d + column] = sum;
  });
}

}  // namespace tandem::cuda::gated_output
