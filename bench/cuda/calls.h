// Tandem's own calls as a C interface, in a shared object of their own (libtandem_calls.so, the
// library inside): for bench/peers on a machine where the PyTorch package is not installed.
#pragma once

#include "gla.h"
#include "scan.h"

#ifdef __cplusplus
extern "C" {
#endif

/// Returns the commit that was built, "-dirty" when it was.
const char* tandem_bench_commit(void);

int tandem_bench_gla_workspace_bytes(const struct tandem_bench_gla* call, size_t* bytes);
int tandem_bench_gla_forward(const struct tandem_bench_gla* call, void* workspace,
                             size_t workspace_bytes, void* stream);
/// Makes the call, and names the variant that it picks.
int tandem_bench_gla_variant(const struct tandem_bench_gla* call, void* workspace,
                             size_t workspace_bytes, void* stream, char name[128]);

/// Makes a call of gated_scan or, with u, linear_scan, and names the variant that it picks.
int tandem_bench_scan_workspace_bytes(const struct tandem_bench_scan* call, size_t* bytes);
int tandem_bench_scan_forward(const struct tandem_bench_scan* call, void* workspace,
                              size_t workspace_bytes, void* stream);
int tandem_bench_scan_variant(const struct tandem_bench_scan* call, void* workspace,
                              size_t workspace_bytes, void* stream, char name[128]);

#ifdef __cplusplus
}
#endif
