// gated_scan's backward on the CPU: the walk of cpu/scan_backward_walk.h over x as it lies in
// memory.
#include <cstdint>

#include "core/real.h"
#include "cpu/isa.h"
#include "cpu/scan_backward_walk.h"
#include "ops/gated_scan.h"

namespace tandem::cpu {

void gated_scan_backward(const GatedScanBackwardProblem& problem, const CallOptions&) {
  const GatedScanForwardProblem& f = problem.forward;
  check_cu_seqlens("gated_scan_backward", f.cu_seqlens, f.N, f.T);
  isa();  // throws before anything is written
  run_with_real(f.dtype, [&]<typename Real>() {
    const auto load_x = [&](const ScanTile& tile, int, Real* x) {
      load_tile(f.dtype, f.x, tile, x);
    };
    using Walk = ScanBackwardWalk<Real, decltype(load_x)>;
    Walk(f, problem, problem.dx, f.dtype, load_x).run();
  });
}

}  // namespace tandem::cpu
