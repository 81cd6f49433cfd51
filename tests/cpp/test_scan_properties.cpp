// Any shape, layout, decay and packing: the scans and their gradients are what the definitions say.
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <algorithm>

#include "cli/calls/check.h"

namespace tandem::tools {
namespace {

std::int64_t in(std::int64_t first, std::int64_t last) {
  return *rc::gen::inRange<std::int64_t>(first, last + 1);
}

Case arbitrary_case() {
  Case one;
  one.name = "property";
  one.axes = {{"B", in(0, 3)}, {"T", in(0, 300)}, {"D", in(1, 300)}, {"d", in(1, 100)}};
  one.decay = *rc::gen::element(DecayKind::kDecay, DecayKind::kLogDecay);
  one.distribution = *rc::gen::element(
      DecayDistribution::kNormal, DecayDistribution::kNormalBench, DecayDistribution::kStrong,
      DecayDistribution::kReset, DecayDistribution::kResetEdges, DecayDistribution::kMinus20,
      DecayDistribution::kMinus100, DecayDistribution::kHuge, DecayDistribution::kZero,
      DecayDistribution::kAlternating, DecayDistribution::kPositive);
  one.fp32_decay = *rc::gen::arbitrary<bool>();
  one.gate = *rc::gen::arbitrary<bool>();
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

void check(const Operation& operation) {
  const Case one = arbitrary_case();
  // Relative errors of a few dozen rounded numbers mean little: the largest decides them.
  const std::int64_t tokens = one.cu_seqlens ? one.cu_seqlens->back() - one.cu_seqlens->front()
                                             : one.axis("B") * one.axis("T");
  RC_PRE(tokens == 0 || tokens * one.axis("D") >= 2000);
  const DType dtype = *rc::gen::element(DType::kFloat16, DType::kFloat32);
  const auto seed = *rc::gen::arbitrary<std::uint64_t>();
  for (const CheckResult& result : check_case(operation, one, dtype, {Device::cpu()}, seed)) {
    if (result.outcome == Outcome::kFailed) RC_FAIL(result.variant + ": " + result.detail);
  }
}

RC_GTEST_PROP(GatedScanProperties, ForwardMatchesTheDefinition, ()) {
  check(find_operation("gated_scan"));
}

RC_GTEST_PROP(GatedScanProperties, BackwardMatchesTheDefinition, ()) {
  check(find_operation("gated_scan", "backward"));
}

RC_GTEST_PROP(LinearScanProperties, ForwardMatchesTheDefinition, ()) {
  check(find_operation("linear_scan"));
}

RC_GTEST_PROP(LinearScanProperties, BackwardMatchesTheDefinition, ()) {
  check(find_operation("linear_scan", "backward"));
}

}  // namespace
}  // namespace tandem::tools
