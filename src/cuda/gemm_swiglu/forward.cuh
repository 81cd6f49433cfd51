// gemm_swiglu_forward_kernel: f(n Wg^T) * (n Wu^T) by one GEMM main loop, whose tiles have as many
// columns of the one product as of the other.
//
// B's rows in a stage are kColumns / 2 of Wg and the same ones of Wu below them, so one wgmma makes
// both, and a thread has the gate and the other factor of a result a fixed way apart in its
// accumulators:
//
//   fragment  | gate, kColumns / 2 columns | up, kColumns / 2 columns |
//   out       | kColumns / 2 columns       |
//
// Numerics: products, activation and what is multiplied are fp32; out and the slopes are rounded
// once. Floor: 4 M d F flops.
#pragma once

#include "cuda/gemm/loop.cuh"
#include "cuda/gemm/target.cuh"
#include "cuda/gemm_swiglu/activations.cuh"
#include "cuda/gemm_swiglu/forward_params.h"

namespace tandem::cuda::gemm_swiglu {

template <class Element, int kColumns>
using ForwardConfig = gemm::Config<Element, gemm::Layout::kNT, kColumns>;

/// Makes results of a fragment and writes them, 64 columns at a time. Slopes replace the products:
/// there are few registers beside those of the fragment and of the tile's other half.
template <class Config, GateActivation kActivation>
__device__ void finish(const ForwardParams& params,
                       const gemm::Fragment<Config::kColumns>& fragment,
                       gemm::PanelStore<Config>& store) {
  constexpr int kPanelValues = 32;  // of a thread
  using Values = float[kPanelValues];
  const int columns = params.columns[0];
  const bool keeps = params.gate_slope.matrix.data != nullptr;
#pragma unroll
  for (int panel = 0; panel < Config::kPanels / 2; ++panel) {
    Values& gate = reinterpret_cast<Values&>(fragment.values[kPanelValues * panel]);
    Values& up =
        reinterpret_cast<Values&>(fragment.values[Config::kColumns / 4 + kPanelValues * panel]);
    const auto write = [&](const gemm::Target& to, Values& values) {
      gemm::write(to, params.rows, columns, columns,
                  gemm::Fragment<64>{values, fragment.row, fragment.segment,
                                     fragment.column + 64 * panel, fragment.outer},
                  store);
    };
    if (!keeps) {
#pragma unroll
      for (int i = 0; i < kPanelValues; ++i) gate[i] = activate<kActivation>(gate[i]).value * up[i];
      write(params.out, gate);
      continue;
    }
    Values out;
#pragma unroll
    for (int i = 0; i < kPanelValues; ++i) {
      const Gate f = activate<kActivation>(gate[i]);
      out[i] = f.value * up[i];
      gate[i] = f.slope * up[i];
      up[i] = f.value;
    }
    write(params.out, out);
    write(params.gate_slope, gate);
    write(params.up_slope, up);
  }
}

template <class Element, int kColumns>
__global__ __launch_bounds__(
    ForwardConfig<Element, kColumns>::kThreads,
    1) void gemm_swiglu_forward_kernel(const __grid_constant__ ForwardParams params) {
  extern __shared__ __align__(1024) char shared_memory[];
  using Config = ForwardConfig<Element, kColumns>;
  auto& shared = *reinterpret_cast<gemm::Shared<Config>*>(shared_memory);
  gemm::run<Config>(params, shared,
                    [&](const gemm::Fragment<kColumns>& fragment, gemm::PanelStore<Config>& store) {
                      with_activation(params.activation, [&](auto activation) {
                        finish<Config, decltype(activation)::value>(params, fragment, store);
                      });
                    });
}

template <class Element, int kColumns>
void launch_forward(const ForwardParams& params, int multiprocessors, void* stream) {
  gemm::launch<ForwardConfig<Element, kColumns>>("gemm_swiglu_forward",
                                                 gemm_swiglu_forward_kernel<Element, kColumns>,
                                                 params, multiprocessors, stream);
}

}  // namespace tandem::cuda::gemm_swiglu
