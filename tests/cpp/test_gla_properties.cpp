// gla on random shapes, strides, decays and sequence lengths against the definition: the CPU
// backend, and on a GPU every variant that takes the case.
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <algorithm>

#include "cli/calls/backend.h"
#include "cli/calls/check.h"

namespace tandem::tools {
namespace {

/// Widths are of 1 to 80, or multiples of 8 up to 256.
Case arbitrary_case(bool native_widths = false) {
  const auto in = [](std::int64_t least, std::int64_t most) {
    return *rc::gen::resize(100, rc::gen::inRange<std::int64_t>(least, most + 1));
  };
  Case one;
  one.name = "property";
  const std::int64_t HQ = in(1, 3);
  const auto width = [&] { return native_widths ? 8 * in(1, 32) : in(1, 80); };
  one.axes = {{"B", in(0, 3)},      {"T", in(0, 200)}, {"HQ", HQ},
              {"H", HQ * in(1, 3)}, {"K", width()},    {"V", width()}};
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

std::int64_t tokens_of(const Case& one) {
  return one.cu_seqlens ? one.cu_seqlens->back() - one.cu_seqlens->front()
                        : one.axis("B") * one.axis("T");
}

// Relative errors of a few dozen sums mean little: one q.k that cancels decides them. So a property
// is of calls with so many results, or with none.

bool enough_outputs(const Case& one) {
  const std::int64_t heads = tokens_of(one) * one.axis("H");
  return heads == 0 || (heads * one.axis("V") >= 256 && heads >= 16);
}

bool enough_of_state(const Case& one) {
  return one.axis("H") * one.axis("K") * one.axis("V") >= 64;
}

/// More of them: a token's dq and dk all carry the error of one rounded weight, and its d_log_decay
/// that of one head's products.
bool enough_gradients(const Case& one) {
  const std::int64_t heads = tokens_of(one) * one.axis("H");
  return enough_outputs(one) && one.axis("K") * one.axis("V") >= 64 &&
         (heads == 0 || heads >= 64) &&
         (tokens_of(one) == 0 || tokens_of(one) * one.axis("HQ") * one.axis("K") >= 256);
}

/// The property: of a case for which `enough` holds every variant on the device passes.
void matches_the_definition(const Operation& operation, bool (*enough)(const Case&),
                            Device device) {
  const bool on_cuda = device.type == DeviceType::kCuda;
  const Case one = arbitrary_case(on_cuda);
  RC_PRE(enough(one));
  const DType dtype =
      on_cuda ? DType::kFloat16 : *rc::gen::element(DType::kFloat16, DType::kFloat32);
  const auto seed = *rc::gen::arbitrary<std::uint64_t>();
  for (const CheckResult& result : check_case(operation, one, dtype, {device}, seed)) {
    if (result.outcome == Outcome::kFailed) RC_FAIL(result.variant + ": " + result.detail);
  }
}

RC_GTEST_PROP(GlaProperties, MatchesTheDefinition, ()) {
  matches_the_definition(find_operation("gla"), enough_outputs, Device::cpu());
}

RC_GTEST_PROP(GlaBackwardProperties, MatchesTheDefinition, ()) {
  matches_the_definition(find_operation("gla", "backward"), enough_gradients, Device::cpu());
}

RC_GTEST_PROP(GlaStateProperties, MatchesTheDefinition, ()) {
  matches_the_definition(find_operation("gla", "state"), enough_of_state, Device::cpu());
}

RC_GTEST_PROP(GlaStateBackwardProperties, MatchesTheDefinition, ()) {
  matches_the_definition(find_operation("gla", "state_backward"), enough_of_state, Device::cpu());
}

class GpuGlaProperties : public testing::Test {
 protected:
  static void check(const Operation& operation, bool (*enough)(const Case&)) {
    const std::string reason = cuda_missing_reason();
    if (!reason.empty()) GTEST_SKIP() << reason;
    EXPECT_TRUE(rc::check([&] { matches_the_definition(operation, enough, Device::cuda()); }));
  }
};

TEST_F(GpuGlaProperties, ForwardMatchesTheDefinition) {
  check(find_operation("gla"), enough_outputs);
}
TEST_F(GpuGlaProperties, BackwardMatchesTheDefinition) {
  check(find_operation("gla", "backward"), enough_gradients);
}
TEST_F(GpuGlaProperties, StateMatchesTheDefinition) {
  check(find_operation("gla", "state"), enough_of_state);
}
TEST_F(GpuGlaProperties, StateBackwardMatchesTheDefinition) {
  check(find_operation("gla", "state_backward"), enough_of_state);
}

}  // namespace
}  // namespace tandem::tools
