// gated_scan on the CPU: the walk of cpu/scan_walk.h over x as it lies in memory.
#include <cstdint>

#include "core/real.h"
#include "cpu/isa.h"
#include "cpu/scan_walk.h"
#include "ops/gated_scan.h"

namespace tandem::cpu {

void gated_scan_forward(const GatedScanForwardProblem& problem, const CallOptions&) {
  check_cu_seqlens("gated_scan_forward", problem.cu_seqlens, problem.N, problem.T);
  isa();  // throws before anything is written
  run_with_real(problem.dtype, [&]<typename Real>() {
    const auto load_x = [&](const ScanTile& tile, int, Real* x) {
      load_tile(problem.dtype, problem.x, tile, x);
    };
    ScanWalk(problem, problem.out, as<Real>(problem.final_state), load_x, as<Real>(problem.states))
        .run();
  });
}

std::vector<VariantInfo> gated_scan_variants() {
  return {{"gated_scan", "gated_scan_forward.cpu", ""},
          {"gated_scan", "gated_scan_backward.cpu", ""},
          {"gated_scan", "gated_scan_decay.cpu", ""},
          {"gated_scan", "gated_scan_carry.cpu", ""},
          {"gated_scan", "gated_scan_carry_backward.cpu", ""}};
}

}  // namespace tandem::cpu
