// Decay factors inside one chunk of a recurrence S_t = exp(g_t) S_{t-1} + ...
//
// With G the running sum of g, what token j contributed reaches token i scaled by exp(G_i - G_j):
// the difference is formed first, then the exponential, so nothing overflows that should not. A
// token whose exp(g) is 0 (g = -inf, or below kResetLogDecay) is a reset: it stays out of
// the sum, and factors across it are exactly 0.
#pragma once

#include <cstdint>
#include <type_traits>

#include "core/float16.h"

namespace tandem::cpu {

constexpr int kChunk = 64;  ///< most tokens of a chunk

/// Log decays below it have an exponential of 0.
template <typename Real>
constexpr Real kResetLogDecay = std::is_same_v<Real, double> ? -745.14 : -104.0;

/// Decay factors of one chunk; all indices are its tokens.
template <typename Real>
struct ChunkDecay {
  int length = 0;
  // G in base 2, as the unevaluated sum high + low: the difference of two G must be good to fp32's
  // last bits even when |G| is in the thousands.
  Real high[kChunk];
  Real low[kChunk];
  int begin[kChunk];  ///< the last reset at or before the token, or 0: the oldest token it still
                      ///< sees
  int first_reset;    ///< the oldest reset, or length: tokens before it see what came before
  Real from_start[kChunk];  ///< from before the chunk to the token
  Real to_end[kChunk];      ///< from the token to the chunk's end
  Real total = 1;           ///< over the whole chunk
};

// Real below is float or double. T is Real, or bf16 beside float.

/// Computes the factors of `length` tokens whose log decays are `stride` apart; null: no decay.
template <typename Real>
void compute_decay(const Real* log_decay, std::int64_t stride, int length, ChunkDecay<Real>& decay);

/// Sums any number of log decays as compute_decay takes them: -inf with a reset among them, 0
/// without decay.
template <typename Real>
double sum_log_decay(const Real* log_decay, std::int64_t stride, std::int64_t length);

/// weights(i,j) = factor scores(i,j) exp(G_i - G_j) for j <= i, 0 for j > i and across resets. Both
/// are [kChunk][kChunk]; the first `length` rows are written whole.
template <typename Real, typename T>
void apply_causal_decay(const ChunkDecay<Real>& decay, const Real* scores, T* weights,
                        std::type_identity_t<Real> factor = 1);

/// gradient(t) = the sum over j < t <= i of scores(i,j) value_scores(i,j) exp(G_i - G_j), not
/// across resets: what the token pairs inside a chunk add to the gradient by g_t. Scores are
/// [kChunk][kChunk]. Adds terms directly: a difference of running sums would cancel.
template <typename Real>
void sum_causal_pairs(const ChunkDecay<Real>& decay, const Real* scores, const Real* value_scores,
                      Real* gradient);

/// Writes rows of `from`, `stride` apart, times factors[i] to `to`, contiguous; a factor of 0 gives
/// 0 whatever `from` holds.
template <typename Real, typename T>
void scale_rows(const Real* factors, int length, std::int64_t columns, const T* from,
                std::int64_t stride, T* to);

/// Multiplies row i of x [length][columns] by factors[i]; a factor of 0 gives 0 whatever x holds.
template <typename Real>
void scale_rows(const Real* factors, int length, std::int64_t columns, Real* x) {
  scale_rows<Real, Real>(factors, length, columns, x, columns, x);
}

/// state = total * state + update; a total of 0 forgets the state whatever it holds.
template <typename Real>
void update_state(Real total, const Real* update, std::int64_t count, Real* state);

/// sum += total * state; a total of 0 adds nothing, whatever the state holds.
template <typename Real>
void add_decayed(Real total, const Real* state, std::int64_t count, Real* sum);

}  // namespace tandem::cpu
