// gla on random shapes, strides, decays and sequence lengths: the CPU backend against the
// definition.
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <algorithm>

#include "check.h"

namespace tandem::tools {
namespace {

Case arbitrary_case() {
  const auto in = [](std::int64_t least, std::int64_t most) {
    return *rc::gen::resize(100, rc::gen::inRange<std::int64_t>(least, most + 1));
  };
  Case one;
  one.name = "property";
  const std::int64_t HQ = in(1, 3);
  one.axes = {{"B", in(0, 3)},      {"T", in(0, 200)}, {"HQ", HQ},
              {"H", HQ * in(1, 3)}, {"K", in(1, 80)},  {"V", in(1, 80)}};
  one.decay = *rc::gen::element(DecayKind::kNone, DecayKind::kConstant, DecayKind::kPerToken);
  one.distribution = *rc::gen::element(
      DecayDistribution::kNormal, DecayDistribution::kNormalBench, DecayDistribution::kStrong,
      DecayDistribution::kReset, DecayDistribution::kResetEdges, DecayDistribution::kMinus20,
      DecayDistribution::kHuge, DecayDistribution::kZero, DecayDistribution::kAlternating,
      DecayDistribution::kPositive);
  one.states = *rc::gen::element(States::kNone, States::kInitial, States::kFinal, States::kBoth,
                                 States::kInPlace);
  one.strides =
      *rc::gen::element(Strides::kContiguous, Strides::kPacked, Strides::kTransposed,
                        Strides::kPadded, Strides::kMisaligned, Strides::kOdd, Strides::kBroadcast);
  if (*rc::gen::arbitrary<bool>()) {
    one.axes["B"] = 1;
    std::vector<std::int32_t> offsets(in(1, 6));
    for (std::int32_t& offset : offsets) {
      offset = static_cast<std::int32_t>(in(0, one.axes["T"]));
    }
    std::sort(offsets.begin(), offsets.end());
    one.cu_seqlens = offsets;
  }
  return one;
}

RC_GTEST_PROP(GlaProperties, MatchesTheDefinition, ()) {
  const Case one = arbitrary_case();
  // Relative errors of a few dozen sums mean little: one q.k that cancels decides them.
  const std::int64_t tokens = one.cu_seqlens ? one.cu_seqlens->back() - one.cu_seqlens->front()
                                             : one.axis("B") * one.axis("T");
  RC_PRE(tokens == 0 || tokens * one.axis("H") * one.axis("V") >= 256);
  RC_PRE(tokens == 0 || tokens * one.axis("H") >= 16);
  const DType dtype = *rc::gen::element(DType::kFloat16, DType::kFloat32);
  const auto seed = *rc::gen::arbitrary<std::uint64_t>();
  for (const CheckResult& result : check_case(kGlaForward, one, dtype, {Device::cpu()}, seed)) {
    if (result.outcome == Outcome::kFailed) RC_FAIL(result.variant + ": " + result.detail);
  }
}

RC_GTEST_PROP(GlaStateProperties, MatchesTheDefinition, ()) {
  const Case one = arbitrary_case();
  RC_PRE(one.axis("H") * one.axis("K") * one.axis("V") >= 64);  // as above
  const DType dtype = *rc::gen::element(DType::kFloat16, DType::kFloat32);
  const auto seed = *rc::gen::arbitrary<std::uint64_t>();
  for (const CheckResult& result : check_case(kGlaState, one, dtype, {Device::cpu()}, seed)) {
    if (result.outcome == Outcome::kFailed) RC_FAIL(result.variant + ": " + result.detail);
  }
}

}  // namespace
}  // namespace tandem::tools
