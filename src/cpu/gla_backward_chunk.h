// The steps of gla's backward on one chunk of tokens, for one sequence and head, from the state S
// before the chunk and the gradient dS by the state after it:
//   A  = scale * Q K^T * factors     W = scale * dO V^T * factors
//   dQ = from_start * (dO S^T) + W K
//   dK = to_end * (V dS^T) + W^T Q
//   dV = to_end * (K dS) + A^T dO
//   dg_t = total <S, dS> + sum_{j<t} k_j . (to_end V dS^T)_j
//          + sum_{i>=t} q_i . (from_start dO S^T)_i + sum_{j<t<=i} A_ij dO_i . v_j
//   dS <- total * dS + (from_start * Q)^T dO
// with the factors of cpu/decay.h, from_start times scale. docs/ops/gla_backward.md derives them.
//
// Numerics as in cpu/gla_chunk.h. The terms of dg are not rounded and its sums of one kind: nothing
// that should cancel is ever added, so a gradient that vanishes comes out small.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "cpu/gla_chunk.h"

namespace tandem::cpu {

/// What a thread needs for one chunk.
template <typename Operand>
struct GlaBackwardScratch {
  using Real = RealOf<Operand>;

  GlaBackwardScratch(int K, int V)
      : forward(K, V),
        d_o_buffer(std::size_t{kChunk} * V),
        value_scores(kChunk * kChunk),
        value_weights(kChunk * kChunk),
        dq(std::size_t{kChunk} * K),
        dk(std::size_t{kChunk} * K),
        dv(std::size_t{kChunk} * V),
        update(static_cast<std::size_t>(K) * V) {}

  GlaScratch<Operand> forward;
  OperandRows<Operand> q, d_o;
  std::vector<Operand> d_o_buffer;
  std::vector<Real> value_scores;
  std::vector<Operand> value_weights;
  std::vector<Real> dq, dk;  // [length,K]
  std::vector<Real> dv;      // [length,V]
  std::vector<Real> update;  // [K,V]
  Real from_start[kChunk];   // times scale
  // Row sums q . dq and k . dk of each token, as far as dq and dk come from outside the chunk.
  Real q_dq[kChunk];
  Real k_dk[kChunk];
};

template <typename Operand>
class GlaBackwardSteps : public GlaChunkSteps<Operand> {
  using Base = GlaChunkSteps<Operand>;

 public:
  using Base::kOperandType, Base::state_size;
  using typename Base::Real;
  using Scratch = GlaBackwardScratch<Operand>;

  GlaBackwardSteps(const GlaBackwardProblem& problem, MatmulProvider provider)
      : Base(problem.forward, provider),
        p_(problem),
        scale_(scale_of<Real>(problem.forward)),
        K_(problem.forward.K),
        V_(problem.forward.V) {}

  Scratch make_scratch() const { return {K_, V_}; }

  /// Loads what the forward's steps need of a chunk.
  void load(const GlaChunk& chunk, GlaScratch<Operand>& s) const { Base::load(chunk, s); }

  /// Loads what all steps need of a chunk.
  void load(const GlaChunk& chunk, Scratch& s) const {
    const GlaForwardProblem& f = p_.forward;
    Base::load(chunk, s.forward);
    s.q = rows_of(f.q, chunk, chunk.row->h / (f.H / f.HQ), K_, s.forward.q_buffer);
    s.d_o = rows_of(p_.d_o, chunk, chunk.row->h, V_, s.d_o_buffer);
    for (int i = 0; i < chunk.length; ++i) s.from_start[i] = scale_ * s.forward.decay.from_start[i];
  }

  /// Computes what the chunk adds to the gradient by the state before it.
  void compute_gradient_update(Scratch& s, Real* update) const {
    const int rows = s.forward.decay.first_reset;  // nothing later sees the state before the chunk
    Operand* queries = s.forward.keys.data();
    scale_rows(s.from_start, rows, K_, s.q.data, s.q.stride, queries);
    product(K_, V_, rows, {queries, K_, true}, {s.d_o.data, s.d_o.stride}, update, V_);
  }

  /// Computes A and W, as far as the wanted gradients need them.
  void compute_weights(Scratch& s) const {
    GlaScratch<Operand>& f = s.forward;
    const int L = f.decay.length;
    if (p_.dv.data || p_.d_log_decay.data) {
      product(L, L, K_, {s.q.data, s.q.stride}, {f.k.data, f.k.stride, true}, f.scores.data(),
              kChunk);
    }
    if (p_.dv.data) apply_causal_decay(f.decay, f.scores.data(), f.weights.data(), scale_);
    if (p_.dq.data || p_.dk.data || p_.d_log_decay.data) {
      product(L, L, V_, {s.d_o.data, s.d_o.stride}, {f.v.data, f.v.stride, true},
              s.value_scores.data(), kChunk);
    }
    if (p_.dq.data || p_.dk.data) {
      apply_causal_decay(f.decay, s.value_scores.data(), s.value_weights.data(), scale_);
    }
  }

  /// Computes s.dq and s.q_dq, from the state before the chunk.
  void compute_dq(const Operand* state, Scratch& s) const {
    const GlaScratch<Operand>& f = s.forward;
    const int L = f.decay.length;
    product(L, K_, V_, {s.d_o.data, s.d_o.stride}, {state, V_, true}, s.dq.data(), K_);
    scale_rows(s.from_start, L, K_, s.dq.data());
    if (p_.d_log_decay.data) {
      dot_rows({kOperandType, s.q.data, s.q.stride}, s.dq.data(), K_, L, K_, s.q_dq);
    }
    if (!p_.dq.data) return;
    product(L, K_, L, {s.value_weights.data(), kChunk}, {f.k.data, f.k.stride}, s.dq.data(), K_,
            true);
  }

  /// Computes s.dk and s.k_dk, from the gradient by the state after the chunk.
  void compute_dk(const Operand* d_state, Scratch& s) const {
    const GlaScratch<Operand>& f = s.forward;
    const int L = f.decay.length;
    product(L, K_, V_, {f.v.data, f.v.stride}, {d_state, V_, true}, s.dk.data(), K_);
    scale_rows(f.decay.to_end, L, K_, s.dk.data());
    if (p_.d_log_decay.data) {
      dot_rows({kOperandType, f.k.data, f.k.stride}, s.dk.data(), K_, L, K_, s.k_dk);
    }
    if (!p_.dk.data) return;
    product(L, K_, L, {s.value_weights.data(), kChunk, true}, {s.q.data, s.q.stride}, s.dk.data(),
            K_, true);
  }

  /// Computes s.dv, from the gradient by the state after the chunk.
  void compute_dv(const Operand* d_state, Scratch& s) const {
    const GlaScratch<Operand>& f = s.forward;
    const int L = f.decay.length;
    product(L, V_, K_, {f.k.data, f.k.stride}, {d_state, V_}, s.dv.data(), V_);
    scale_rows(f.decay.to_end, L, V_, s.dv.data());
    product(L, V_, L, {f.weights.data(), kChunk, true}, {s.d_o.data, s.d_o.stride}, s.dv.data(), V_,
            true);
  }

  /// Computes dg of the chunk's tokens, after compute_weights, compute_dq and compute_dk.
  void compute_decay_gradient(const Real* state, const Real* d_state, Scratch& s,
                              Real* gradient) const {
    const ChunkDecay<Real>& decay = s.forward.decay;
    const int L = decay.length;
    const std::int64_t size = state_size();
    sum_causal_pairs(decay, s.forward.scores.data(), s.value_scores.data(), gradient);
    Real through = 0;  // of what was before the chunk to what comes after it
    if (decay.total != 0) {
      dot_rows({kRealType<Real>, state, size}, d_state, size, 1, size, &through);
      through *= decay.total;
    }
    Real after = 0;
    for (int t = L - 1; t >= 0; --t) {
      after += s.q_dq[t];
      gradient[t] = scale_ * gradient[t] + after;
    }
    Real before = through;
    for (int t = 0; t < L; ++t) {
      gradient[t] += before;
      before += s.k_dk[t];
    }
  }

 private:
  using Base::product, Base::rows_of;

  const GlaBackwardProblem& p_;
  const Real scale_;
  const int K_, V_;
};

}  // namespace tandem::cpu
