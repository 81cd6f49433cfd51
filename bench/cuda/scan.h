// The scans' baselines as a C interface (bench.h says how failures are told): the forward of
// gated_scan and linear_scan with a kernel for each step, the scan one token after another.
#pragma once

#include "bench.h"

#ifdef __cplusplus
extern "C" {
#endif

/// A [B,T,width] tensor; strides in elements, the innermost extent is dense.
struct tandem_bench_tokens {
  void* data;
  long long batch_stride;
  long long time_stride;
};

/// The forward of include/tandem/ops/gated_scan.h or, with u, linear_scan.h, on device memory.
struct tandem_bench_scan {
  int device;
  int dtype;       ///< of x, u, weight, gate, out
  int fp32_decay;  ///< 1: the decay is fp32; 0: it is of dtype
  int log_decay;   ///< 1: decay holds its logarithm
  long long B;
  long long T;
  int D;
  int d;                             ///< width of u; 0 without
  struct tandem_bench_tokens x;      ///< [B,T,D]; data null with u
  struct tandem_bench_tokens u;      ///< [B,T,d]; data null with x
  struct tandem_bench_tokens decay;  ///< [B,T,D]
  struct tandem_bench_tokens gate;   ///< [B,T,D]; data null: none
  struct tandem_bench_tokens out;    ///< [B,T,D]
  void* weight;                      ///< [D,d]
  long long weight_stride;           ///< of its rows
  const float* initial_state;        ///< [N,D] or null
  float* final_state;                ///< [N,D] or null
  long long N;                       ///< sequences: B in a dense batch
  const int* cu_seqlens;             ///< [N+1], or null in a dense batch
};

/// Fails for what the baseline refuses: cu_seqlens, and u or weight with gaps or off 256 bytes.
int tandem_bench_unfused_scan_workspace_bytes(const struct tandem_bench_scan* call, size_t* bytes);

/// Enqueues x = u W^T (of linear_scan), the scan, and the gate (if there is one), a kernel each.
/// Capturable after one direct call on the device, which creates the cuBLASLt handle and loads the
/// kernels.
int tandem_bench_unfused_scan_forward(const struct tandem_bench_scan* call, void* workspace,
                                      size_t workspace_bytes, void* stream);

/// Enqueues only the product, into x [B,T,D] without gaps at the begin of the workspace, for a
/// fused scan and gate to read. Capturable after one direct call on the device.
int tandem_bench_projection_workspace_bytes(const struct tandem_bench_scan* call, size_t* bytes);
int tandem_bench_projection_forward(const struct tandem_bench_scan* call, void* workspace,
                                    size_t workspace_bytes, void* stream);

#ifdef __cplusplus
}
#endif
