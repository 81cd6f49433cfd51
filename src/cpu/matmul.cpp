#include "cpu/matmul.h"

#include <algorithm>

#include "core/environment.h"
#include "core/real.h"
#include "cpu/elementwise.h"
#include "cpu/matmul_onednn.h"
#include "tandem/error.h"

namespace tandem::cpu {

void matmul(MatmulProvider provider, const MatmulArgs& args) {
  if (args.M == 0 || args.N == 0) return;
  if (args.K == 0) {
    const Rows c{real_dtype(args.dtype), args.c, args.c_stride};
    if (!args.accumulate) fill_rows_with_zero(args.M, args.N, c);
    return;
  }
  // oneDNN 2.6 has no products of bf16 for machines without AVX-512, and none of fp64.
  const bool has_dtype = args.dtype == DType::kFloat32 ||
                         (args.dtype == DType::kBFloat16 && onednn::multiplies_bf16());
  if (provider == MatmulProvider::kOneDnn && has_dtype) {
    onednn::matmul(args);
  } else {
    matmul_builtin(args, isa());
  }
}

std::string matmul_unavailable_reason(MatmulProvider provider) {
  return provider == MatmulProvider::kOneDnn ? onednn::unavailable_reason() : "";
}

MatmulProvider default_matmul_provider() {
  const std::string reason = onednn::unavailable_reason();
  switch (cpu_matmul_switch()) {
    case CpuMatmulSwitch::kBuiltin: return MatmulProvider::kBuiltin;
    case CpuMatmulSwitch::kOneDnn:
      if (reason.empty()) return MatmulProvider::kOneDnn;
      throw Unsupported("[environment] TANDEM_CPU_MATMUL = onednn: " + reason);
    case CpuMatmulSwitch::kUnset: break;
  }
  return reason.empty() ? MatmulProvider::kOneDnn : MatmulProvider::kBuiltin;
}

MatmulProvider matmul_provider(const CallOptions& options) {
  if (options.variant.ends_with(".builtin")) return MatmulProvider::kBuiltin;
  if (!options.variant.ends_with(".onednn")) return default_matmul_provider();
  const std::string reason = onednn::unavailable_reason();
  if (!reason.empty()) throw Unsupported(std::string(options.variant) + ": " + reason);
  return MatmulProvider::kOneDnn;
}

std::int64_t matmul_rows(MatmulProvider provider, std::int64_t rows, std::int64_t most) {
  constexpr std::int64_t kTile = 8;
  if (provider == MatmulProvider::kOneDnn) return most;
  return std::min((rows + kTile - 1) / kTile * kTile, most);
}

bool matmul_prefers_bf16(MatmulProvider provider) {
  return provider == MatmulProvider::kOneDnn && onednn::multiplies_bf16();
}

}  // namespace tandem::cpu
