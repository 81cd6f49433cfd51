// linear_scan on the CPU: the walk of cpu/scan_walk.h over x as cpu/linear_scan_projection.h makes
// it.
#include "ops/linear_scan.h"
#include "core/real.h"
#include "cpu/isa.h"
#include "cpu/linear_scan_projection.h"
#include "cpu/scan_walk.h"

namespace tandem::cpu {

void linear_scan_forward(const LinearScanForwardProblem& problem, const CallOptions& options) {
  check_cu_seqlens("linear_scan_forward", problem.cu_seqlens, problem.N, problem.T);
  isa();  // throws before anything is written
  const MatmulProvider provider = matmul_provider(options);
  run_with_real(problem.dtype, [&]<typename Real>() {
    const LinearScanProjection<Real> project(problem, provider);
    const auto load_x = [&](const ScanTile& tile, int thread, Real* x) {
      project(tile, thread, x);
      if (problem.x.data) store_tile(problem.dtype, x, tile, problem.x);
    };
    ScanWalk(problem, problem.out, as<Real>(problem.final_state), load_x, as<Real>(problem.states))
        .run();
  });
}

std::vector<VariantInfo> linear_scan_variants() {
  const std::string onednn = matmul_unavailable_reason(MatmulProvider::kOneDnn);
  return {{"linear_scan", "linear_scan_forward.cpu.onednn", onednn},
          {"linear_scan", "linear_scan_forward.cpu.builtin", ""},
          {"linear_scan", "linear_scan_backward.cpu.onednn", onednn},
          {"linear_scan", "linear_scan_backward.cpu.builtin", ""}};
}

}  // namespace tandem::cpu
