// The instruction set of the CPU backend's own loops, chosen at run time: one binary for every
// machine.
//
// A loop is written once as an always-inline function of plain C++; TANDEM_FOR_EACH_ISA compiles it
// for each instruction set, and the compiler's vectoriser does the rest. Other architectures get
// one version.
#pragma once

#include <vector>

#if defined(__x86_64__) && defined(__GNUC__)
#define TANDEM_X86 1
#define TANDEM_AVX2 __attribute__((target("avx2,fma,f16c,bmi,bmi2")))
#if defined(__clang__)
#define TANDEM_AVX512 \
  __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c,bmi2")))
#else
#define TANDEM_AVX512                                                     \
  __attribute__((                                                         \
      target("avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c,bmi,bmi2," \
             "prefer-vector-width=512")))
#endif
#else
#define TANDEM_X86 0
#define TANDEM_AVX2
#define TANDEM_AVX512
#endif

#if defined(__GNUC__)
#define TANDEM_ALWAYS_INLINE inline __attribute__((always_inline))
#else
#define TANDEM_ALWAYS_INLINE inline
#endif

namespace tandem::cpu {

enum class Isa { kBaseline, kAvx2, kAvx512 };

/// Returns the best one that this machine has, or what TANDEM_CPU_ISA asks for; fixed at the first
/// call. Throws Unsupported when the machine lacks what the variable asks for.
Isa isa();

/// Returns what this machine can run, the plainest first.
std::vector<Isa> supported_isas();

}  // namespace tandem::cpu

/// Defines `name parameters` with the body of the always-inline function call `body arguments`,
/// compiled for each instruction set and chosen at run time.
#define TANDEM_FOR_EACH_ISA(name, parameters, call)        \
  static void name##_baseline parameters { call; }         \
  TANDEM_AVX2 static void name##_avx2 parameters { call; } \
  TANDEM_AVX512 static void name##_avx512 parameters { call; }

#define TANDEM_CALL_FOR_ISA(isa, name, ...)                   \
  switch (isa) {                                              \
    case Isa::kAvx512: return name##_avx512(__VA_ARGS__);     \
    case Isa::kAvx2: return name##_avx2(__VA_ARGS__);         \
    case Isa::kBaseline: return name##_baseline(__VA_ARGS__); \
  }
