// Matrix products of the CPU backend: C = alpha op(A) op(B) (+ C), row-major, fp32 result.
//
// Two providers compute them: oneDNN where the build has it, and a built-in blocked loop. Of fp64
// operands the result is fp64, and the built-in loop a plain one. A call
// stays on its thread: it is the callers' loops that use all cores.
#pragma once

#include <cstdint>
#include <string>

#include "core/call_options.h"
#include "cpu/isa.h"
#include "tandem/tensor.h"

namespace tandem::cpu {

enum class MatmulProvider { kOneDnn, kBuiltin };

/// One operand, A or B, in fp32, bf16 or fp64; its rows are `stride` elements apart as they lie in
/// memory.
struct MatmulOperand {
  const void* data = nullptr;
  std::int64_t stride = 0;
  bool transposed = false;  ///< memory holds the transpose
};

struct MatmulArgs {
  std::int64_t M = 0;
  std::int64_t N = 0;
  std::int64_t K = 0;
  DType dtype = DType::kFloat32;  ///< of A and B
  MatmulOperand a;                ///< [M,K]
  MatmulOperand b;                ///< [K,N]
  void* c = nullptr;              ///< [M,N], fp32, or fp64 where A and B are
  std::int64_t c_stride = 0;
  float alpha = 1.0f;
  bool accumulate = false;  ///< add to C instead of overwriting it
};

/// Computes the product. Strides must be at least the width of a row, except that M, N or K = 0 is
/// no error.
void matmul(MatmulProvider provider, const MatmulArgs& args);

/// Computes the product by the built-in loop with a given instruction set, for tests; `isa` must be
/// one of supported_isas().
void matmul_builtin(const MatmulArgs& args, Isa isa);

/// Says why a provider cannot be used, "" when it can.
std::string matmul_unavailable_reason(MatmulProvider provider);

/// Returns what TANDEM_CPU_MATMUL asks for, else oneDNN where the build has it. Throws Unsupported
/// when the build lacks what the variable asks for.
MatmulProvider default_matmul_provider();

/// Returns the provider that the call's variant names ("gla_forward.cpu.onednn"), else the default
/// one. Throws Unsupported when the build lacks it.
MatmulProvider matmul_provider(const CallOptions& options);

/// Rows of a product of `rows`, at most `most`, where a row's bits must not depend on how many
/// others there are; what is behind them is zeros. oneDNN may add up fewer rows in another order,
/// so it always gets all; the built-in loop has one order, and gets whole tiles of its own.
std::int64_t matmul_rows(MatmulProvider provider, std::int64_t rows, std::int64_t most);

/// Whether bf16 operands are faster than the same in fp32: where the machine multiplies bf16
/// natively.
bool matmul_prefers_bf16(MatmulProvider provider);

}  // namespace tandem::cpu
