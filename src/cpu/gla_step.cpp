// gla_step on the CPU: each row of the state is read, decayed, updated, multiplied and written
// once.
//
// Columns of the state are independent, so threads share the heads and, where there are fewer heads
// than threads, blocks of columns of each. Every column is summed over K in the same order
// whichever thread has it.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

#include "core/float16.h"
#include "core/real.h"
#include "cpu/elementwise.h"
#include "cpu/isa.h"
#include "cpu/parallel.h"
#include "ops/gla.h"

namespace tandem::cpu {
namespace {

constexpr int kColumnBlock = 64;  // why: prefetching ends at rows of less than 256 bytes

/// Columns of one head's state, and what they are updated with.
template <typename Stored>
struct StateColumns {
  using Real = RealOf<Stored>;

  Stored* data;
  std::int64_t key_stride;
  int K;
  int columns;
  Real decay;
  const Real* q;  // [K]
  const Real* k;  // [K]
  const Real* v;  // [columns]
  Real* sum;      // out [columns]: q^T S
};

/// Updates one row of the state, of one key. why parameters: there __restrict outlives inlining.
template <typename Stored, typename Real>
TANDEM_ALWAYS_INLINE void step_row(Stored* __restrict row, const Real* __restrict v,
                                   Real* __restrict sum, int columns, Real decay, Real k, Real q) {
  for (int j = 0; j < columns; ++j) {
    const Real kept = decay == 0 ? Real{0} : decay * to_float(row[j]);
    const Real value = kept + k * v[j];
    row[j] = from_float<Stored>(value);
    sum[j] += q * value;
  }
}

template <typename Stored>
TANDEM_ALWAYS_INLINE void step_loop(const StateColumns<Stored>& s) {
  std::fill_n(s.sum, s.columns, RealOf<Stored>{0});
  for (int i = 0; i < s.K; ++i) {
    step_row(s.data + i * s.key_stride, s.v, s.sum, s.columns, s.decay, s.k[i], s.q[i]);
  }
}

namespace fp32 {
TANDEM_FOR_EACH_ISA(step, (const StateColumns<float>& columns), step_loop(columns))
}
namespace bf16 {
TANDEM_FOR_EACH_ISA(step, (const StateColumns<BFloat16>& columns), step_loop(columns))
}

void step(const StateColumns<float>& columns) { TANDEM_CALL_FOR_ISA(isa(), fp32::step, columns) }
void step(const StateColumns<BFloat16>& columns) { TANDEM_CALL_FOR_ISA(isa(), bf16::step, columns) }
void step(const StateColumns<double>& columns) { step_loop(columns); }

/// q, k, v and o of one thread.
template <typename Real>
struct Scratch {
  std::vector<Real> q, k, v, sum;
};

/// Steps columns [first, first + columns) of one batch and head.
template <typename Stored>
void step_columns(const GlaStepProblem& p, std::int64_t b, int h, int first, int columns,
                  Scratch<RealOf<Stored>>& scratch) {
  using Real = RealOf<Stored>;
  const int query_head = h / (p.H / p.HQ);
  const auto row_of = [&](const StridedTensor& x, int head, int from) {
    return element_at(p.dtype, x.data, b * x.batch_stride + head * x.head_stride + from);
  };
  rows_to_float({p.dtype, row_of(p.q, query_head, 0), 0}, 1, p.K, scratch.q.data(), 0);
  rows_to_float({p.dtype, row_of(p.k, query_head, 0), 0}, 1, p.K, scratch.k.data(), 0);
  rows_to_float({p.dtype, row_of(p.v, h, first), 0}, 1, columns, scratch.v.data(), 0);
  const DecayTensor& g = p.log_decay;
  const Real decay =
      g.data == nullptr ? 1 : std::exp(as<Real>(g.data)[b * g.batch_stride + h * g.head_stride]);
  const StateTensor& state = p.state;
  auto* data = static_cast<Stored*>(state.data) + b * state.batch_stride + h * state.head_stride;
  step(StateColumns<Stored>{data + first, state.key_stride, p.K, columns, decay, scratch.q.data(),
                            scratch.k.data(), scratch.v.data(), scratch.sum.data()});
  rows_from_float(scratch.sum.data(), 0, 1, columns, scale_of<Real>(p),
                  {p.dtype, row_of(p.o, h, first), 0});
}

template <typename Stored>
void run(const GlaStepProblem& p) {
  using Real = RealOf<Stored>;
  const std::int64_t heads = p.B * p.H;
  const int threads = parallel_threads();
  const int width = heads >= threads ? p.V : std::min(p.V, kColumnBlock);
  const int blocks = (p.V + width - 1) / width;
  const auto row = [](int size) { return std::vector<Real>(size); };
  std::vector<Scratch<Real>> scratch(threads, {row(p.K), row(p.K), row(width), row(width)});
  parallel_for(heads * blocks, threads, Schedule::kStatic, [&](std::int64_t i, int thread) {
    const std::int64_t head = i / blocks;
    const int first = static_cast<int>(i % blocks) * width;
    step_columns<Stored>(p, head / p.H, static_cast<int>(head % p.H), first,
                         std::min(width, p.V - first), scratch[thread]);
  });
}

}  // namespace

void gla_step(const GlaStepProblem& problem, const CallOptions&) {
  isa();  // throws before anything is written
  switch (problem.state_dtype) {
    case DType::kBFloat16: return run<BFloat16>(problem);
    case DType::kFloat64: return run<double>(problem);
    default: return run<float>(problem);
  }
}

std::vector<VariantInfo> gla_step_variants() { return {{"gla", "gla_step.cpu", ""}}; }

}  // namespace tandem::cpu
