// Leaves of a gated scan on the CPU: what happens inside a tile of at most 64 tokens and 128
// channels, in fp32, each channel on its own.
//
// A tile is [rows][kScanColumns] floats of which the first `columns` of each row count; a line is
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

/// x = exp(x).
void exponentiate(TileShape shape, float* x);

/// total = the product of the decays over the rows.
void multiply_decays(TileShape shape, const float* decay, float* total);

/// sum = the state after the rows when it is 0 before them.
void sum_states(TileShape shape, const float* decay, const float* x, float* sum);

/// Scans states, [rows + 1] lines: the first is given, the state before the rows; the others
/// follow, s = decay s + x.
void scan_states(TileShape shape, const float* decay, const float* x, float* states);

/// Scans gradients from the last row to the first: d += carry, carry = decay d. That turns what
/// each token adds to the gradients by the states into these gradients; the carry is given after
/// the rows and returned before them.
void scan_gradients(TileShape shape, const float* decay, float* d, float* carry);

/// Passes a line on: after = total before + after.
void pass_on(int columns, const float* total, const float* before, float* after);

/// x *= silu(gate).
void apply_gate(TileShape shape, const float* gate, float* x);

/// d_gate = silu'(gate) states d_out.
void differentiate_gate(TileShape shape, const float* gate, const float* states, const float* d_out,
                        float* d_gate);

/// d_decay = before d, or decay before d for the gradient by the decay's log (0 where decay is 0).
void differentiate_decay(TileShape shape, const float* before, const float* d, float* d_decay);
void differentiate_log_decay(TileShape shape, const float* decay, const float* before,
                             const float* d, float* d_log_decay);

}  // namespace tandem::cpu
