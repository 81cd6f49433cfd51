// Every environment switch of the library, in one place. Read at each use, so that a test can flip
// them. A value that is not listed throws InvalidArgument naming the variable.
#pragma once

#include "core/call_options.h"

namespace tandem {

/// TANDEM_CPU_MATMUL=onednn|builtin: who computes the CPU backend's matrix products.
enum class CpuMatmulSwitch { kUnset, kOneDnn, kBuiltin };
CpuMatmulSwitch cpu_matmul_switch();

/// TANDEM_CPU_ISA=baseline|avx2|avx512: the instruction set of the CPU backend's own loops. Has its
/// effect at the first call of the process.
enum class CpuIsaSwitch { kUnset, kBaseline, kAvx2, kAvx512 };
CpuIsaSwitch cpu_isa_switch();

/// TANDEM_BATCH_INVARIANT=0|1: whether every call is as with Context::batch_invariant.
bool batch_invariant_switch();

/// TANDEM_VARIANT=<name of a CUDA variant>: the only one that calls may use. Returns the options of
/// a public call: what is chosen is what last_variant() (tandem/variants.h) tells from then on.
CallOptions call_options_from_environment();

/// TANDEM_GLA_SEGMENTS=<1 to 1024>: into how many segments gla cuts sequences on a GPU; 0
/// when unset: it chooses.
int gla_segments_switch();

/// TANDEM_GLA_MERGE=0|1: whether gla merges packed sequences on a GPU where it can; it chooses when
/// unset.
enum class MergeSwitch { kUnset, kNever, kAlways };
MergeSwitch gla_merge_switch();

}  // namespace tandem
