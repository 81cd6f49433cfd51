// gla's backward on the CPU: chunks of 64 tokens, matrix products inside a chunk
// (cpu/gla_backward_chunk.h), the states and the gradients by them from chunk to chunk
// (cpu/gla_backward_segments.h, cpu/gla_backward_walk.h). saved_states are not read: they would
// spare a small part of the work.
#include <cstdint>

#include "cpu/gla_backward_walk.h"
#include "cpu/gla_rows.h"
#include "ops/gla.h"

namespace tandem::cpu {
namespace {

/// Writes zeros at tokens outside every sequence.
template <typename Real>
void clear_gradients_outside(const GlaBackwardProblem& p) {
  const GlaForwardProblem& f = p.forward;
  if (p.dq.data) clear_outside(f, p.dq, f.HQ, f.K);
  if (p.dk.data) clear_outside(f, p.dk, f.HQ, f.K);
  if (p.dv.data) clear_outside(f, p.dv, f.H, f.V);
  const DecayGradient& g = p.d_log_decay;
  if (!g.data || !g.per_token || !f.cu_seqlens) return;
  for (std::int64_t t = 0; t < f.T; ++t) {
    if (t >= f.cu_seqlens[0] && t < f.cu_seqlens[f.N]) continue;
    for (int h = 0; h < f.H; ++h) as<Real>(g.data)[t * g.time_stride + h * g.head_stride] = 0;
  }
}

void run(const GlaBackwardProblem& problem, const CallOptions& options) {
  run_with_operands(options, problem.forward.dtype, [&]<typename Operand>(MatmulProvider provider) {
    clear_gradients_outside<RealOf<Operand>>(problem);
    GlaBackwardWalk<Operand>(problem, provider).run();
  });
}

}  // namespace

void gla_backward(const GlaBackwardProblem& problem, const CallOptions& options) {
  check_cu_seqlens("gla_backward", problem.forward);
  run(problem, options);
}

void gla_state_backward(const GlaStateBackwardProblem& problem, const CallOptions& options) {
  check_cu_seqlens("gla_state_backward", problem);
  // The gradient by an initial state does not depend on k and v: any tensors will do, so q and d_o,
  // which are read anyway, stand in for them.
  GlaBackwardProblem backward;
  static_cast<GlaRecurrence&>(backward.forward) = problem;
  backward.forward.scale = problem.scale;
  backward.forward.scale_rest = problem.scale_rest;
  backward.forward.q = problem.k;
  backward.d_o = problem.v;
  backward.d_initial_state = problem.d_state;
  run(backward, options);
  const DecayTensor& g = problem.log_decay;
  run_with_real(problem.dtype, [&]<typename Real>() {
    for (const GlaRow& row : gla_rows(problem)) {
      const std::int64_t first =
          row.b * g.batch_stride + row.begin * g.time_stride + row.h * g.head_stride;
      const Real* log_decay = g.data ? as<Real>(g.data) + first : nullptr;
      as<Real>(problem.total_log_decay)[row.n * problem.H + row.h] =
          static_cast<Real>(sum_log_decay(log_decay, g.time_stride, row.end - row.begin));
    }
  });
}

}  // namespace tandem::cpu
