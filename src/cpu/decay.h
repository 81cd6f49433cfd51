// Decay factors inside one chunk of a recurrence S_t = exp(g_t) S_{t-1} + ...
//
// With G the running sum of g, what token j contributed reaches token i scaled by exp(G_i - G_j):
// the difference is formed first, then the exponential, so nothing overflows that should not. A
// token whose exp(g) is 0 in fp32 (g = -inf, or below kResetLogDecay) is a reset: it stays out of
// the sum, and factors across it are exactly 0.
#pragma once

#include <cstdint>

#include "core/float16.h"

namespace tandem::cpu {

constexpr int kChunk = 64;  ///< most tokens of a chunk
constexpr float kResetLogDecay = -104.0f;

/// Decay factors of one chunk; all indices are its tokens.
struct ChunkDecay {
  int length = 0;
  // G in base 2, as the unevaluated sum high + low: the difference of two G must be good to fp32's
  // last bits even when |G| is in the thousands.
  float high[kChunk];
  float low[kChunk];
  int begin[kChunk];  ///< the last reset at or before the token, or 0: the oldest token it still
                      ///< sees
  int first_reset;    ///< the oldest reset, or length: tokens before it see what came before
  float from_start[kChunk];  ///< from before the chunk to the token
  float to_end[kChunk];      ///< from the token to the chunk's end
  float total = 1.0f;        ///< over the whole chunk
};

/// Computes the factors of `length` tokens whose log decays are `stride` apart; null: no decay.
void compute_decay(const float* log_decay, std::int64_t stride, int length, ChunkDecay& decay);

/// Sums any number of log decays as compute_decay takes them: -inf with a reset among them, 0
/// without decay.
double sum_log_decay(const float* log_decay, std::int64_t stride, std::int64_t length);

/// weights(i,j) = factor scores(i,j) exp(G_i - G_j) for j <= i, 0 for j > i and across resets. Both
/// are [kChunk][kChunk]; the first `length` rows are written whole.
void apply_causal_decay(const ChunkDecay& decay, const float* scores, float* weights,
                        float factor = 1.0f);
void apply_causal_decay(const ChunkDecay& decay, const float* scores, BFloat16* weights,
                        float factor = 1.0f);

/// gradient(t) = the sum over j < t <= i of scores(i,j) value_scores(i,j) exp(G_i - G_j), not
/// across resets: what the token pairs inside a chunk add to the gradient by g_t. Scores are
/// [kChunk][kChunk]. Adds terms directly: a difference of running sums would cancel.
void sum_causal_pairs(const ChunkDecay& decay, const float* scores, const float* value_scores,
                      float* gradient);

/// Multiplies row i of x [length][columns] by factors[i]; a factor of 0 gives 0 whatever x holds.
void scale_rows(const float* factors, int length, std::int64_t columns, float* x);

/// Writes rows of `from`, `stride` apart, times factors[i] to `to`, contiguous; a factor of 0 gives
/// 0 whatever `from` holds.
void scale_rows(const float* factors, int length, std::int64_t columns, const float* from,
                std::int64_t stride, float* to);
void scale_rows(const float* factors, int length, std::int64_t columns, const BFloat16* from,
                std::int64_t stride, BFloat16* to);

/// state = total * state + update; a total of 0 forgets the state whatever it holds.
void update_state(float total, const float* update, std::int64_t count, float* state);

/// sum += total * state; a total of 0 adds nothing, whatever the state holds.
void add_decayed(float total, const float* state, std::int64_t count, float* sum);

}  // namespace tandem::cpu
