#include "cpu/scan_tile.h"

#include <algorithm>

#include "cpu/exp2.h"
#include "cpu/isa.h"

namespace tandem::cpu {
namespace {

// why a function per row: __restrict of parameters outlives inlining.
#define TANDEM_ROW         \
  template <typename Real> \
  TANDEM_ALWAYS_INLINE void

template <typename Real>
TANDEM_ALWAYS_INLINE Real kept(Real decay, Real value) {
  const Real product = decay * value;  // why a variable: a product under a condition may trap
  return decay == 0 ? Real{0} : product;
}

template <typename Real>
TANDEM_ALWAYS_INLINE Real sigmoid(Real x) {
  return 1 / (1 + exp(-x));
}

TANDEM_ROW exponentiate_row(int columns, Real* __restrict x) {
  for (int j = 0; j < columns; ++j) x[j] = exp(x[j]);
}

TANDEM_ROW multiply_row(int columns, const Real* __restrict decay, Real* __restrict total) {
  for (int j = 0; j < columns; ++j) total[j] = kept(decay[j], total[j]);
}

/// after = decay before + x.
TANDEM_ROW step_row(int columns, const Real* __restrict decay, const Real* __restrict x,
                    const Real* __restrict before, Real* __restrict after) {
  for (int j = 0; j < columns; ++j) after[j] = kept(decay[j], before[j]) + x[j];
}

TANDEM_ROW sum_row(int columns, const Real* __restrict decay, const Real* __restrict x,
                   Real* __restrict sum) {
  for (int j = 0; j < columns; ++j) sum[j] = kept(decay[j], sum[j]) + x[j];
}

TANDEM_ROW pass_on_row(int columns, const Real* __restrict total, const Real* __restrict before,
                       Real* __restrict after) {
  for (int j = 0; j < columns; ++j) after[j] = kept(total[j], before[j]) + after[j];
}

TANDEM_ROW gradient_row(int columns, const Real* __restrict decay, Real* __restrict d,
                        Real* __restrict carry) {
  for (int j = 0; j < columns; ++j) {
    d[j] += carry[j];
    carry[j] = kept(decay[j], d[j]);
  }
}

TANDEM_ROW gate_row(int columns, const Real* __restrict gate, Real* __restrict x) {
  for (int j = 0; j < columns; ++j) x[j] *= gate[j] * sigmoid(gate[j]);
}

/// out += silu(gate) state where that is not 0; a null gate is none.
TANDEM_ROW add_row(int columns, const Real* __restrict gate, const Real* __restrict state,
                   Real* __restrict out) {
  for (int j = 0; j < columns; ++j) {
    const Real sum = out[j] + (gate ? gate[j] * sigmoid(gate[j]) : Real{1}) * state[j];
    out[j] = state[j] == 0 ? out[j] : sum;
  }
}

TANDEM_ROW gate_gradient_row(int columns, const Real* __restrict gate, const Real* __restrict state,
                             const Real* __restrict d_out, Real* __restrict d_gate) {
  for (int j = 0; j < columns; ++j) {
    const Real s = sigmoid(gate[j]);
    d_gate[j] = s * (1 + gate[j] * (1 - s)) * (state[j] * d_out[j]);
  }
}

TANDEM_ROW product_row(int columns, const Real* __restrict a, const Real* __restrict b,
                       Real* __restrict product) {
  for (int j = 0; j < columns; ++j) product[j] = a[j] * b[j];
}

TANDEM_ROW log_gradient_row(int columns, const Real* __restrict decay,
                            const Real* __restrict before, const Real* __restrict d,
                            Real* __restrict gradient) {
  for (int j = 0; j < columns; ++j) gradient[j] = kept(decay[j], before[j] * d[j]);
}

#undef TANDEM_ROW

template <typename Real>
TANDEM_ALWAYS_INLINE void exponentiate_rows(TileShape shape, Real* x) {
  for (int i = 0; i < shape.rows; ++i) exponentiate_row(shape.columns, x + i * kScanColumns);
}

template <typename Real>
TANDEM_ALWAYS_INLINE void multiply_rows(TileShape shape, const Real* decay, Real* total) {
  std::fill_n(total, shape.columns, Real{1});
  for (int i = 0; i < shape.rows; ++i) {
    multiply_row(shape.columns, decay + i * kScanColumns, total);
  }
}

template <typename Real>
TANDEM_ALWAYS_INLINE void sum_rows(TileShape shape, const Real* decay, const Real* x, Real* sum) {
  std::fill_n(sum, shape.columns, Real{0});
  for (int i = 0; i < shape.rows; ++i) {
    sum_row(shape.columns, decay + i * kScanColumns, x + i * kScanColumns, sum);
  }
}

template <typename Real>
TANDEM_ALWAYS_INLINE void scan_rows(TileShape shape, const Real* decay, const Real* x,
                                    Real* states) {
  for (int i = 0; i < shape.rows; ++i) {
    const int at = i * kScanColumns;
    step_row(shape.columns, decay + at, x + at, states + at, states + at + kScanColumns);
  }
}

template <typename Real>
TANDEM_ALWAYS_INLINE void gradient_rows(TileShape shape, const Real* decay, Real* d, Real* carry) {
  for (int i = shape.rows - 1; i >= 0; --i) {
    gradient_row(shape.columns, decay + i * kScanColumns, d + i * kScanColumns, carry);
  }
}

template <typename Real>
TANDEM_ALWAYS_INLINE void gate_rows(TileShape shape, const Real* gate, Real* x) {
  for (int i = 0; i < shape.rows; ++i) {
    gate_row(shape.columns, gate + i * kScanColumns, x + i * kScanColumns);
  }
}

template <typename Real>
TANDEM_ALWAYS_INLINE void add_rows(TileShape shape, const Real* gate, const Real* states,
                                   Real* out) {
  for (int i = 0; i < shape.rows; ++i) {
    const int at = i * kScanColumns;
    add_row(shape.columns, gate ? gate + at : gate, states + at, out + at);
  }
}

template <typename Real>
TANDEM_ALWAYS_INLINE void gate_gradient_rows(TileShape shape, const Real* gate, const Real* states,
                                             const Real* d_out, Real* d_gate) {
  for (int i = 0; i < shape.rows; ++i) {
    const int at = i * kScanColumns;
    gate_gradient_row(shape.columns, gate + at, states + at, d_out + at, d_gate + at);
  }
}

template <typename Real>
TANDEM_ALWAYS_INLINE void product_rows(TileShape shape, const Real* a, const Real* b,
                                       Real* product) {
  for (int i = 0; i < shape.rows; ++i) {
    const int at = i * kScanColumns;
    product_row(shape.columns, a + at, b + at, product + at);
  }
}

template <typename Real>
TANDEM_ALWAYS_INLINE void log_gradient_rows(TileShape shape, const Real* decay, const Real* before,
                                            const Real* d, Real* gradient) {
  for (int i = 0; i < shape.rows; ++i) {
    const int at = i * kScanColumns;
    log_gradient_row(shape.columns, decay + at, before + at, d + at, gradient + at);
  }
}

TANDEM_FOR_EACH_ISA(exponentiate, (TileShape shape, float* x), exponentiate_rows(shape, x))
TANDEM_FOR_EACH_ISA(multiply, (TileShape shape, const float* decay, float* total),
                    multiply_rows(shape, decay, total))
TANDEM_FOR_EACH_ISA(sum, (TileShape shape, const float* decay, const float* x, float* sum),
                    sum_rows(shape, decay, x, sum))
TANDEM_FOR_EACH_ISA(scan, (TileShape shape, const float* decay, const float* x, float* states),
                    scan_rows(shape, decay, x, states))
TANDEM_FOR_EACH_ISA(gradient, (TileShape shape, const float* decay, float* d, float* carry),
                    gradient_rows(shape, decay, d, carry))
TANDEM_FOR_EACH_ISA(pass, (int columns, const float* total, const float* before, float* after),
                    pass_on_row(columns, total, before, after))
TANDEM_FOR_EACH_ISA(gate, (TileShape shape, const float* gate, float* x), gate_rows(shape, gate, x))
TANDEM_FOR_EACH_ISA(add, (TileShape shape, const float* gate, const float* states, float* out),
                    add_rows(shape, gate, states, out))
TANDEM_FOR_EACH_ISA(gate_gradient,
                    (TileShape shape, const float* gate, const float* states, const float* d_out,
                     float* d_gate),
                    gate_gradient_rows(shape, gate, states, d_out, d_gate))
TANDEM_FOR_EACH_ISA(product, (TileShape shape, const float* a, const float* b, float* product),
                    product_rows(shape, a, b, product))
TANDEM_FOR_EACH_ISA(log_gradient,
                    (TileShape shape, const float* decay, const float* before, const float* d,
                     float* gradient),
                    log_gradient_rows(shape, decay, before, d, gradient))

}  // namespace

// In fp32 by instruction sets, in fp64 as it is.

template <>
void exponentiate(TileShape shape, float* x) {
  TANDEM_CALL_FOR_ISA(isa(), exponentiate, shape, x)
}

template <>
void exponentiate(TileShape shape, double* x) {
  exponentiate_rows(shape, x);
}

template <>
void multiply_decays(TileShape shape, const float* decay, float* total) {
  TANDEM_CALL_FOR_ISA(isa(), multiply, shape, decay, total)
}

template <>
void multiply_decays(TileShape shape, const double* decay, double* total) {
  multiply_rows(shape, decay, total);
}

template <>
void sum_states(TileShape shape, const float* decay, const float* x, float* sum) {
  TANDEM_CALL_FOR_ISA(isa(), sum, shape, decay, x, sum)
}

template <>
void sum_states(TileShape shape, const double* decay, const double* x, double* sum) {
  sum_rows(shape, decay, x, sum);
}

template <>
void scan_states(TileShape shape, const float* decay, const float* x, float* states) {
  TANDEM_CALL_FOR_ISA(isa(), scan, shape, decay, x, states)
}

template <>
void scan_states(TileShape shape, const double* decay, const double* x, double* states) {
  scan_rows(shape, decay, x, states);
}

template <>
void scan_gradients(TileShape shape, const float* decay, float* d, float* carry) {
  TANDEM_CALL_FOR_ISA(isa(), gradient, shape, decay, d, carry)
}

template <>
void scan_gradients(TileShape shape, const double* decay, double* d, double* carry) {
  gradient_rows(shape, decay, d, carry);
}

template <>
void pass_on(int columns, const float* total, const float* before, float* after) {
  TANDEM_CALL_FOR_ISA(isa(), pass, columns, total, before, after)
}

template <>
void pass_on(int columns, const double* total, const double* before, double* after) {
  pass_on_row(columns, total, before, after);
}

template <>
void apply_gate(TileShape shape, const float* gate, float* x) {
  TANDEM_CALL_FOR_ISA(isa(), gate, shape, gate, x)
}

template <>
void apply_gate(TileShape shape, const double* gate, double* x) {
  gate_rows(shape, gate, x);
}

template <>
void add_states(TileShape shape, const float* gate, const float* states, float* out) {
  TANDEM_CALL_FOR_ISA(isa(), add, shape, gate, states, out)
}

template <>
void add_states(TileShape shape, const double* gate, const double* states, double* out) {
  add_rows(shape, gate, states, out);
}

template <>
void differentiate_gate(TileShape shape, const float* gate, const float* states, const float* d_out,
                        float* d_gate) {
  TANDEM_CALL_FOR_ISA(isa(), gate_gradient, shape, gate, states, d_out, d_gate)
}

template <>
void differentiate_gate(TileShape shape, const double* gate, const double* states,
                        const double* d_out, double* d_gate) {
  gate_gradient_rows(shape, gate, states, d_out, d_gate);
}

template <>
void differentiate_decay(TileShape shape, const float* before, const float* d, float* d_decay) {
  TANDEM_CALL_FOR_ISA(isa(), product, shape, before, d, d_decay)
}

template <>
void differentiate_decay(TileShape shape, const double* before, const double* d, double* d_decay) {
  product_rows(shape, before, d, d_decay);
}

template <>
void differentiate_log_decay(TileShape shape, const float* decay, const float* before,
                             const float* d, float* d_log_decay) {
  TANDEM_CALL_FOR_ISA(isa(), log_gradient, shape, decay, before, d, d_log_decay)
}

template <>
void differentiate_log_decay(TileShape shape, const double* decay, const double* before,
                             const double* d, double* d_log_decay) {
  log_gradient_rows(shape, decay, before, d, d_log_decay);
}

}  // namespace tandem::cpu
