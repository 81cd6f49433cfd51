// Every call of the library, and of the unfused baselines, as a C interface: one description and
// one entry, which the tables of src/ops serve. In a shared object of its own (libtandem_calls.so,
// the library inside), for bench/peers on a machine where the PyTorch package is not installed.
//
// Every function returns 0, or -1 after setting tandem_bench_last_error() (per thread).
#pragma once

#include <stdint.h>

#include "bench.h"

#ifdef __cplusplus
extern "C" {
#endif

/// Returns the commit that was built, "-dirty" when it was.
const char* tandem_bench_commit(void);

enum { TANDEM_BENCH_BF16 = 0, TANDEM_BENCH_FP16, TANDEM_BENCH_FP32, TANDEM_BENCH_INT32 };
enum { TANDEM_BENCH_HOST = -1 };  ///< the CPU, in place of a CUDA ordinal

/// A tensor by the name of the C++ argument: "q", "d_final_state".
struct tandem_bench_tensor {
  const char* name;
  void* data;
  int dtype;
  int rank;
  int64_t shape[5];
  int64_t strides[5];  ///< in elements
};

struct tandem_bench_number {
  const char* name;  ///< "scale"
  double value;
};

struct tandem_bench_call {
  const char* function;  ///< "gla_forward"; of a baseline "unfused.gla_forward"
  int device;            ///< of all tensors
  int tensor_count;
  int number_count;
  const struct tandem_bench_tensor* tensors;
  const struct tandem_bench_number* numbers;
};

int tandem_bench_call_workspace_bytes(const struct tandem_bench_call* call, size_t* bytes);

/// Enqueues the call; a baseline can be captured in a CUDA graph after one direct call. Without a
/// workspace a call that needs one takes stream-ordered memory. `variant`: null, or where to name
/// the CUDA variant that was chosen.
int tandem_bench_call_run(const struct tandem_bench_call* call, void* workspace,
                          size_t workspace_bytes, void* stream, char variant[128]);

#ifdef __cplusplus
}
#endif
