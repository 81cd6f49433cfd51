// Leaves of a gated scan on the CPU: what happens inside a tile of at most 64 tokens and 128
// channels, each channel on its own.
//
// A tile is [rows][kScanColumns] values of which the first `columns` of each row count; a line is
// [columns]. Loops are vectorised over the channels. A decay of 0 forgets: what it multiplies
// leaves no trace, inf and NaN included.
#pragma once

namespace tandem::cpu {

constexpr int kScanRows = 64;
constexpr int kScanColumns = 128;

struct TileShape {
  int rows;
  int columns;
};

// Real is float or double.

/// x = exp(x).
template <typename Real>
void exponentiate(TileShape shape, Real* x);

/// total = the product of the decays over the rows.
template <typename Real>
void multiply_decays(TileShape shape, const Real* decay, Real* total);

/// sum = the state after the rows when it is 0 before them.
template <typename Real>
void sum_states(TileShape shape, const Real* decay, const Real* x, Real* sum);

/// Scans states, [rows + 1] lines: the first is given, the state before the rows; the others
/// follow, s = decay s + x.
template <typename Real>
void scan_states(TileShape shape, const Real* decay, const Real* x, Real* states);

/// Scans gradients from the last row to the first: d += carry, carry = decay d. That turns what
/// each token adds to the gradients by the states into these gradients; the carry is given after
/// the rows and returned before them.
template <typename Real>
void scan_gradients(TileShape shape, const Real* decay, Real* d, Real* carry);

/// Passes a line on: after = total before + after.
template <typename Real>
void pass_on(int columns, const Real* total, const Real* before, Real* after);

/// x *= silu(gate).
template <typename Real>
void apply_gate(TileShape shape, const Real* gate, Real* x);

/// out += silu(gate) states, or states where gate is null; where a state is 0 out stays.
template <typename Real>
void add_states(TileShape shape, const Real* gate, const Real* states, Real* out);

/// d_gate = silu'(gate) states d_out.
template <typename Real>
void differentiate_gate(TileShape shape, const Real* gate, const Real* states, const Real* d_out,
                        Real* d_gate);

/// d_decay = before d, or decay before d for the gradient by the decay's log (0 where decay is 0).
template <typename Real>
void differentiate_decay(TileShape shape, const Real* before, const Real* d, Real* d_decay);
template <typename Real>
void differentiate_log_decay(TileShape shape, const Real* decay, const Real* before, const Real* d,
                             Real* d_log_decay);

}  // namespace tandem::cpu
