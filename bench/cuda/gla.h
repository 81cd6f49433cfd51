// gla's baseline as a C interface (bench.h says how failures are told): the forward as a careful
// PyTorch user would write it, cuBLASLt products and separate element-wise kernels.
#pragma once

#include "bench.h"

#ifdef __cplusplus
extern "C" {
#endif

/// A strided view; strides in elements, the innermost extent is dense.
struct tandem_bench_activation {
  void* data;
  long long batch_stride;
  long long time_stride;
  long long head_stride;
};

/// The forward of include/tandem/ops/gla.h, on device memory.
struct tandem_bench_gla {
  int device;
  int dtype;  ///< of q, k, v, o
  long long B;
  long long T;
  int H;
  int HQ;
  int K;
  int V;
  float scale;
  struct tandem_bench_activation q;          ///< [B,T,HQ,K]
  struct tandem_bench_activation k;          ///< [B,T,HQ,K]
  struct tandem_bench_activation v;          ///< [B,T,H,V]
  struct tandem_bench_activation o;          ///< [B,T,H,V]
  struct tandem_bench_activation log_decay;  ///< fp32; data null: none; strides 0 along absent axes
  const float* initial_state;                ///< [N,H,K,V] or null
  float* final_state;                        ///< [N,H,K,V] or null
  long long N;                               ///< sequences: B in a dense batch
  const int* cu_seqlens;                     ///< [N+1], or null in a dense batch
};

/// Fails for what the baseline refuses: K or V no multiple of 8, cu_seqlens.
int tandem_bench_unfused_gla_workspace_bytes(const struct tandem_bench_gla* call, size_t* bytes);

/// Enqueues the call. Capturable after one direct call on the device, which creates the cuBLASLt
/// handle and loads the kernels.
int tandem_bench_unfused_gla_forward(const struct tandem_bench_gla* call, void* workspace,
                                     size_t workspace_bytes, void* stream);

#ifdef __cplusplus
}
#endif
