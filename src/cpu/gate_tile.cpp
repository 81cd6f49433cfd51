#include "cpu/gate_tile.h"

#include <cmath>
#include <numbers>

#include "cpu/exp2.h"
#include "cpu/isa.h"
#include "cpu/logistic.h"

namespace tandem::cpu {
namespace {

/// A gate's value and slope.
template <typename Real>
struct Gate {
  Real value, slope;
};

/// Calls one(g), which returns a Gate, for each value.
template <typename Real, typename One>
TANDEM_ALWAYS_INLINE void map(std::int64_t count, Real* __restrict g, Real* __restrict u,
                              Real* __restrict out, const One& one) {
  for (std::int64_t i = 0; i < count; ++i) {
    const Gate<Real> gate = one(g[i]);
    out[i] = gate.value * u[i];
    u[i] *= gate.slope;
    g[i] = gate.value;
  }
}

template <typename Real>
TANDEM_ALWAYS_INLINE Gate<Real> silu(Real z) {
  const Logistic<Real> l(z);
  return {z * l.sigmoid(), l.sigmoid() + z * l.slope()};
}

/// By erfc: 1 + erf cancels where z is negative.
template <typename Real>
TANDEM_ALWAYS_INLINE Gate<Real> gelu(Real z) {
  constexpr Real kInverseRoot2 = std::numbers::sqrt2_v<Real> / 2;
  constexpr Real kDensityAt0 = std::numbers::inv_sqrtpi_v<Real> * kInverseRoot2;
  const Real below = std::erfc(-z * kInverseRoot2) / 2;
  return {z * below, below + z * kDensityAt0 * exp(-z * z / 2)};
}

/// By 1 + tanh(y) = 2 sigmoid(2 y).
template <typename Real>
TANDEM_ALWAYS_INLINE Gate<Real> gelu_tanh(Real z) {
  constexpr Real kTwiceRoot2OverPi =
      2 * std::numbers::sqrt2_v<Real> * std::numbers::inv_sqrtpi_v<Real>;
  constexpr Real kCubic = static_cast<Real>(0.044715);
  const Logistic<Real> l(kTwiceRoot2OverPi * (z + kCubic * z * z * z));
  const Real bend = z * l.slope();
  // why the choice: z^2 overflows before z does.
  const Real rest = bend == 0 ? 0 : bend * kTwiceRoot2OverPi * (1 + 3 * kCubic * z * z);
  return {z * l.sigmoid(), l.sigmoid() + rest};
}

/// NaN passes.
template <typename Real>
TANDEM_ALWAYS_INLINE Gate<Real> relu(Real z) {
  return {z <= 0 ? 0 : z, z > 0 ? 1 : z <= 0 ? 0 : z};
}

template <typename Real>
TANDEM_ALWAYS_INLINE void gate_loop(GateActivation activation, std::int64_t count, Real* g, Real* u,
                                    Real* out) {
  switch (activation) {
    case GateActivation::kSilu: return map(count, g, u, out, silu<Real>);
    case GateActivation::kGelu: return map(count, g, u, out, gelu<Real>);
    case GateActivation::kGeluTanh: return map(count, g, u, out, gelu_tanh<Real>);
    case GateActivation::kRelu: return map(count, g, u, out, relu<Real>);
  }
}

TANDEM_FOR_EACH_ISA(gate_tile,
                    (GateActivation activation, std::int64_t count, float* g, float* u, float* out),
                    gate_loop(activation, count, g, u, out))

}  // namespace

template <>
void gate(GateActivation activation, std::int64_t count, float* g, float* u, float* out) {
  TANDEM_CALL_FOR_ISA(isa(), gate_tile, activation, count, g, u, out)
}
template <>
void gate(GateActivation activation, std::int64_t count, double* g, double* u, double* out) {
  gate_loop(activation, count, g, u, out);
}

}  // namespace tandem::cpu
