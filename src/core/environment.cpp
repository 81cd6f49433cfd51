#include "core/environment.h"

#include <charconv>
#include <cstdlib>
#include <initializer_list>
#include <string>
#include <string_view>

#include "tandem/error.h"
#include "tandem/variants.h"

namespace tandem {
namespace {

template <typename Value>
struct Choice {
  std::string_view text;
  Value value;
};

/// Returns the choice that the variable names; `unset` when it is unset or empty.
template <typename Value>
Value choose(const char* variable, Value unset, std::initializer_list<Choice<Value>> choices) {
  const char* text = std::getenv(variable);
  if (text == nullptr || *text == '\0') return unset;
  std::string allowed;
  for (const Choice<Value>& choice : choices) {
    if (choice.text == text) return choice.value;
    allowed += (allowed.empty() ? "" : " or ") + std::string(choice.text);
  }
  throw InvalidArgument("[environment] " + std::string(variable) + " must be " + allowed +
                        ", got " + text);
}

thread_local std::string chosen_variant;

}  // namespace

CpuMatmulSwitch cpu_matmul_switch() {
  using enum CpuMatmulSwitch;
  return choose<CpuMatmulSwitch>("TANDEM_CPU_MATMUL", kUnset,
                                 {{"onednn", kOneDnn}, {"builtin", kBuiltin}});
}

CpuIsaSwitch cpu_isa_switch() {
  using enum CpuIsaSwitch;
  return choose<CpuIsaSwitch>("TANDEM_CPU_ISA", kUnset,
                              {{"baseline", kBaseline}, {"avx2", kAvx2}, {"avx512", kAvx512}});
}

bool batch_invariant_switch() {
  return choose("TANDEM_BATCH_INVARIANT", false, {{"0", false}, {"1", true}});
}

CallOptions call_options_from_environment() {
  const char* text = std::getenv("TANDEM_VARIANT");
  return {text == nullptr ? "" : text, &chosen_variant, batch_invariant_switch()};
}

std::string last_variant() { return chosen_variant; }

int gla_segments_switch() {
  const char* text = std::getenv("TANDEM_GLA_SEGMENTS");
  if (text == nullptr || *text == '\0') return 0;
  int segments = 0;
  const std::string_view whole(text);
  const auto [end, error] = std::from_chars(whole.begin(), whole.end(), segments);
  if (error != std::errc() || end != whole.end() || segments < 1 || segments > 1024) {
    throw InvalidArgument(
        "[environment] TANDEM_GLA_SEGMENTS must be a number from 1 to 1024, got " +
        std::string(text));
  }
  return segments;
}

MergeSwitch gla_merge_switch() {
  using enum MergeSwitch;
  return choose<MergeSwitch>("TANDEM_GLA_MERGE", kUnset, {{"0", kNever}, {"1", kAlways}});
}

}  // namespace tandem
