#include "cpu/isa.h"

#include <string>

#include "core/environment.h"
#include "tandem/error.h"

namespace tandem::cpu {
namespace {

bool has(Isa isa) {
#if TANDEM_X86
  __builtin_cpu_init();
  const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
                    __builtin_cpu_supports("bmi2");
  const bool avx512 = avx2 && __builtin_cpu_supports("avx512f") &&
                      __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
                      __builtin_cpu_supports("avx512vl");
  return isa == Isa::kBaseline || (isa == Isa::kAvx2 && avx2) || (isa == Isa::kAvx512 && avx512);
#else
  return isa == Isa::kBaseline;
#endif
}

Isa require(Isa isa, const std::string& name) {
  if (has(isa)) return isa;
  throw Unsupported("[environment] TANDEM_CPU_ISA = " + name + ": this machine does not have it");
}

Isa choose() {
  switch (cpu_isa_switch()) {
    case CpuIsaSwitch::kBaseline: return Isa::kBaseline;
    case CpuIsaSwitch::kAvx2: return require(Isa::kAvx2, "avx2");
    case CpuIsaSwitch::kAvx512: return require(Isa::kAvx512, "avx512");
    case CpuIsaSwitch::kUnset: break;
  }
  return supported_isas().back();
}

}  // namespace

std::vector<Isa> supported_isas() {
  std::vector<Isa> isas;
  for (const Isa isa : {Isa::kBaseline, Isa::kAvx2, Isa::kAvx512}) {
    if (has(isa)) isas.push_back(isa);
  }
  return isas;
}

Isa isa() {
  static const Isa chosen = choose();
  return chosen;
}

}  // namespace tandem::cpu
