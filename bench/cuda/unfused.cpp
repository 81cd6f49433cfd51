// The table of the unfused baselines. Compiled in a build without CUDA too.
#include "bench/cuda/unfused.h"

#include "ops/gated_scan.h"
#include "ops/gla.h"
#include "ops/linear_scan.h"
#include "ops/projection.h"
#include "tandem/error.h"

namespace tandem::bench {
namespace {

#ifdef TANDEM_CUDA
constexpr bool kWithCuda = true;
#else
constexpr bool kWithCuda = false;
#endif

template <class Args>
auto problem_of(const void* args) {
  if (!kWithCuda) throw Unsupported("cuda: " + cuda_unavailable_reason());
  return make_problem(*static_cast<const Args*>(args));
}

template <class Args, auto run, auto workspace_bytes>
Baseline baseline(const char* provider, const char* variant, const Signature& call) {
  return {provider, variant, &call,
          [](const void* args, const Context& context) {
            const auto problem = problem_of<Args>(args);
            if constexpr (kWithCuda) run(problem, context);
          },
          [](const void* args) -> std::size_t {
            const auto problem = problem_of<Args>(args);
            if constexpr (kWithCuda) return workspace_bytes(problem);
            return 0;
          }};
}

}  // namespace

const std::vector<Baseline>& baselines() {
  static const std::vector<Baseline> all = {
      baseline<GlaForwardArgs, unfused_gla, unfused_gla_workspace_bytes>(
          "unfused", "unfused.cublaslt", gla_forward_signature()),
      baseline<GatedScanForwardArgs, unfused_gated_scan, unfused_gated_scan_workspace_bytes>(
          "unfused", "unfused.scan_gate", gated_scan_forward_signature()),
      baseline<LinearScanForwardArgs, unfused_linear_scan, unfused_linear_scan_workspace_bytes>(
          "unfused", "unfused.gemm_scan_gate", linear_scan_forward_signature()),
      baseline<LinearScanForwardArgs, unfused_two_linear_scan,
               unfused_two_linear_scan_workspace_bytes>(
          "unfused_two", "unfused_two.gemm_gated_scan", linear_scan_forward_signature()),
      baseline<ProjectionForwardArgs, unfused_projection, unfused_projection_workspace_bytes>(
          "unfused", "unfused.cublaslt", projection_forward_signature()),
      baseline<ProjectionBackwardArgs, unfused_projection_backward,
               unfused_projection_backward_workspace_bytes>("unfused", "unfused.cublaslt",
                                                            projection_backward_signature())};
  return all;
}

}  // namespace tandem::bench
