// The steps of gla on one chunk of tokens, for one sequence and head:
//   output  o  = scale * [ (Q K^T * factors) V + from_start * (Q S) ]
//   update  U  = (to_end * K)^T V,   S = total * S + U
// with the factors of cpu/decay.h.
//
// Numerics: fp32 sums and state. Operand is the type of the products' operands: float, or BFloat16
// where the machine multiplies it natively; then the inputs go in as they are, and the weighted
// scores, the decayed keys and a copy of the state are rounded once. Tensors of fp64 are operands
// as they are, and sums and state are fp64 too.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <type_traits>
#include <vector>

#include "core/real.h"
#include "cpu/decay.h"
#include "cpu/elementwise.h"
#include "cpu/gla_rows.h"
#include "cpu/isa.h"
#include "cpu/matmul.h"
#include "ops/gla_problem.h"

namespace tandem::cpu {

static_assert(kSavedStateTokens % kChunk == 0);  // a saved state is one before a chunk

/// Calls run.operator()<Operand>(provider) with the type that operands of `dtype` have in products
/// of the provider that the options name. Switches that are not valid throw before.
template <typename Run>
void run_with_operands(const CallOptions& options, DType dtype, const Run& run) {
  const MatmulProvider provider = matmul_provider(options);
  isa();  // throws before anything is written
  if (dtype == DType::kFloat64) {
    run.template operator()<double>(provider);
  } else if (dtype == DType::kBFloat16 && matmul_prefers_bf16(provider)) {
    run.template operator()<BFloat16>(provider);
  } else {
    run.template operator()<float>(provider);
  }
}

/// Rows of an operand, usable by a matrix product.
template <typename Operand>
struct OperandRows {
  const Operand* data;
  std::int64_t stride;
};

/// What a thread needs for one chunk.
template <typename Operand>
struct GlaScratch {
  using Real = RealOf<Operand>;

  GlaScratch(int K, int V)
      : q_buffer(std::size_t{kChunk} * K),
        k_buffer(std::size_t{kChunk} * K),
        v_buffer(std::size_t{kChunk} * V),
        keys(std::size_t{kChunk} * K),
        scores(kChunk * kChunk),
        weights(kChunk * kChunk),
        out(std::size_t{kChunk} * V) {}

  ChunkDecay<Real> decay;
  OperandRows<Operand> k, v;                          // of the chunk, as a product takes them
  std::vector<Operand> q_buffer, k_buffer, v_buffer;  // copies of what cannot be used as it lies
  std::vector<Operand> keys;
  std::vector<Real> scores;
  std::vector<Operand> weights;
  std::vector<Real> out;
};

/// Steps that say what a chunk does to the state, from k, v and the decay alone.
template <typename Operand>
class GlaUpdateSteps {
 public:
  using Real = RealOf<Operand>;
  static constexpr bool kBf16 = std::is_same_v<Operand, BFloat16>;
  static constexpr DType kOperandType = kBf16 ? DType::kBFloat16 : kRealType<Real>;

  GlaUpdateSteps(const GlaRecurrence& recurrence, MatmulProvider provider)
      : r_(recurrence), provider_(provider) {}

  std::int64_t state_size() const { return std::int64_t{r_.K} * r_.V; }
  GlaScratch<Operand> make_scratch() const { return {r_.K, r_.V}; }

  /// Returns the log decays from a token of the row on, r_.log_decay.time_stride apart; null: no
  /// decay.
  const Real* log_decay_at(const GlaRow& row, std::int64_t token) const {
    const DecayTensor& g = r_.log_decay;
    if (!g.data) return nullptr;
    return as<Real>(g.data) + row.b * g.batch_stride + token * g.time_stride +
           row.h * g.head_stride;
  }

  /// Loads the chunk's decay and operands, before any other step.
  void load(const GlaChunk& chunk, GlaScratch<Operand>& s) const {
    compute_decay(log_decay_at(*chunk.row, chunk.begin), r_.log_decay.time_stride, chunk.length,
                  s.decay);
    s.k = rows_of(r_.k, chunk, key_head(chunk), r_.K, s.k_buffer);
    s.v = rows_of(r_.v, chunk, chunk.row->h, r_.V, s.v_buffer);
  }

  /// Prefetches what load() will read: the rows lie far apart, and the hardware does not foresee
  /// them.
  void prefetch(const GlaChunk& chunk) const {
    prefetch_rows(r_.k, chunk, key_head(chunk), r_.K);
    prefetch_rows(r_.v, chunk, chunk.row->h, r_.V);
  }

  /// Computes what the chunk adds to the state.
  void compute_update(GlaScratch<Operand>& s, Real* update) const {
    const int K = r_.K, V = r_.V;
    const int last = s.decay.length - 1;
    const int begin = s.decay.begin[last];  // nothing older reaches the end
    const Operand* v = s.v.data + begin * s.v.stride;
    scale_rows(s.decay.to_end + begin, last + 1 - begin, K, s.k.data + begin * s.k.stride,
               s.k.stride, s.keys.data());
    product(K, V, last + 1 - begin, {s.keys.data(), K, true}, {v, s.v.stride}, update, V);
  }

 protected:
  int key_head(const GlaChunk& chunk) const { return chunk.row->h / (r_.H / r_.HQ); }

  void product(std::int64_t M, std::int64_t N, std::int64_t K, const MatmulOperand& a,
               const MatmulOperand& b, Real* c, std::int64_t c_stride,
               bool accumulate = false) const {
    matmul(provider_, {.M = M,
                       .N = N,
                       .K = K,
                       .dtype = kOperandType,
                       .a = a,
                       .b = b,
                       .c = c,
                       .c_stride = c_stride,
                       .accumulate = accumulate});
  }

  void prefetch_rows(const StridedTensor& tensor, const GlaChunk& chunk, int head,
                     int columns) const {
    constexpr std::int64_t kLine = 64;
    const std::int64_t bytes = columns * size_of(r_.dtype);
    const std::int64_t offset = chunk.row->b * tensor.batch_stride + head * tensor.head_stride;
    for (int i = 0; i < chunk.length; ++i) {
      const void* row =
          element_at(r_.dtype, tensor.data, offset + (chunk.begin + i) * tensor.time_stride);
      for (std::int64_t byte = 0; byte < bytes; byte += kLine) {
        __builtin_prefetch(static_cast<const char*>(row) + byte, 0, 2);
      }
    }
  }

  /// Returns a chunk's rows as they lie in the tensor, or copied to `buffer` where a product cannot
  /// use them so.
  OperandRows<Operand> rows_of(const StridedTensor& tensor, const GlaChunk& chunk, int head,
                               int columns, std::vector<Operand>& buffer) const {
    const std::int64_t offset = chunk.row->b * tensor.batch_stride +
                                chunk.begin * tensor.time_stride + head * tensor.head_stride;
    const void* data = element_at(r_.dtype, tensor.data, offset);
    if (r_.dtype == kOperandType && tensor.time_stride >= columns) {
      return {static_cast<const Operand*>(data), tensor.time_stride};
    }
    if constexpr (kBf16) {
      const Operand* source = static_cast<const Operand*>(data);
      for (int i = 0; i < chunk.length; ++i) {
        std::copy_n(source + i * tensor.time_stride, columns, buffer.data() + i * columns);
      }
    } else {
      rows_to_float({r_.dtype, data, tensor.time_stride}, chunk.length, columns, buffer.data(),
                    columns);
    }
    return {buffer.data(), columns};
  }

  const GlaRecurrence& r_;
  MatmulProvider provider_;
};

/// All steps of a chunk.
template <typename Operand>
class GlaChunkSteps : public GlaUpdateSteps<Operand> {
  using Base = GlaUpdateSteps<Operand>;

 public:
  using Base::kBf16, Base::kOperandType, Base::state_size;
  using typename Base::Real;

  GlaChunkSteps(const GlaForwardProblem& problem, MatmulProvider provider)
      : Base(problem, provider), p_(problem) {}

  /// Reads elements [begin, begin + size) of the row's initial state.
  void read_initial_state(const GlaRow& row, std::int64_t begin, std::int64_t size,
                          Real* state) const {
    const std::int64_t offset = (row.n * p_.H + row.h) * state_size() + begin;
    if (p_.initial_state) {
      std::copy_n(as<Real>(p_.initial_state) + offset, size, state);
    } else {
      std::fill_n(state, size, Real{0});
    }
  }

  void write_final_state(const GlaRow& row, std::int64_t begin, std::int64_t size,
                         const Real* state) const {
    const std::int64_t offset = (row.n * p_.H + row.h) * state_size() + begin;
    if (p_.final_state) std::copy_n(state, size, as<Real>(p_.final_state) + offset);
  }

  /// Writes elements [begin, begin + size) of the state before a chunk to saved_states, transposed,
  /// if it is one of them.
  void write_saved_state(const GlaChunk& chunk, std::int64_t begin, std::int64_t size,
                         const Real* state) const {
    if (!p_.saved_states || chunk.begin % kSavedStateTokens != 0) return;
    const int K = p_.K, V = p_.V;
    const std::int64_t saved = (p_.T + kSavedStateTokens - 1) / kSavedStateTokens;  // of a row
    const std::int64_t offset =
        ((chunk.row->b * saved + chunk.begin / kSavedStateTokens) * p_.H + chunk.row->h) *
        state_size();
    for (std::int64_t i = begin; i < begin + size;) {
      const std::int64_t k = i / V, v = i % V;
      const std::int64_t count = std::min(V - v, begin + size - i);  // of the state's row k
      rows_from_float(state + (i - begin), 1, count, 1, 1.0f,
                      {p_.dtype, element_at(p_.dtype, p_.saved_states, offset + v * K + k), K});
      i += count;
    }
  }

  void prefetch(const GlaChunk& chunk) const {
    Base::prefetch(chunk);
    prefetch_rows(p_.q, chunk, key_head(chunk), p_.K);
    prefetch_rows(p_.o, chunk, chunk.row->h, p_.V);
  }

  /// Writes o of the chunk, from the state before it.
  void write_output(const GlaChunk& chunk, const Operand* state, GlaScratch<Operand>& s) const {
    const int L = chunk.length, K = p_.K, V = p_.V;
    const OperandRows<Operand> q = rows_of(p_.q, chunk, key_head(chunk), K, s.q_buffer);
    Real* out = s.out.data();
    product(L, L, K, {q.data, q.stride}, {s.k.data, s.k.stride, true}, s.scores.data(), kChunk);
    apply_causal_decay(s.decay, s.scores.data(), s.weights.data());
    product(L, V, K, {q.data, q.stride}, {state, V}, out, V);
    scale_rows(s.decay.from_start, L, V, out);
    product(L, V, L, {s.weights.data(), kChunk}, {s.v.data, s.v.stride}, out, V, true);
    const std::int64_t offset = chunk.row->b * p_.o.batch_stride + chunk.begin * p_.o.time_stride +
                                chunk.row->h * p_.o.head_stride;
    rows_from_float(out, V, L, V, scale_of<Real>(p_),
                    {p_.dtype, element_at(p_.dtype, p_.o.data, offset), p_.o.time_stride});
  }

  /// Returns the state as an operand: itself, or rounded into `copy`.
  const Operand* as_operand(const Real* state, std::int64_t size, Operand* copy) const {
    if constexpr (kBf16) {
      round_state(state, size, copy);
      return copy;
    } else {
      return state;
    }
  }

  void round_state(const Real* state, std::int64_t size, Operand* copy) const {
    rows_from_float(state, 0, 1, size, 1.0f, {kOperandType, copy, 0});
  }

  /// Copies the initial state of a row without tokens to its final state.
  void copy_state(const GlaRow& row) const {
    std::vector<Real> state(state_size());
    read_initial_state(row, 0, state_size(), state.data());
    write_final_state(row, 0, state_size(), state.data());
  }

 protected:
  using Base::key_head, Base::prefetch_rows, Base::product, Base::rows_of;

 private:
  const GlaForwardProblem& p_;
};

}  // namespace tandem::cpu
