// cases/gated_scan.json and cases/linear_scan.json: they hold the sizes that are measured and
// what the ops promise, and cost counts every tensor once.
#include <gtest/gtest.h>

#include <map>
#include <set>

#include "cli/calls/operation.h"
#include "cli/cases/cases.h"

namespace tandem::tools {
namespace {

struct Shape {
  std::int64_t B, T, d, D;
};

void expect_named(const std::string& op, const std::map<std::string, Shape>& named) {
  for (const auto& [name, shape] : named) {
    const auto cases = select_cases(load_cases(op), name, "bench");
    ASSERT_EQ(cases.size(), 1u) << op << " " << name;
    const Case& one = cases[0];
    EXPECT_EQ(one.axis("B"), shape.B) << name;
    EXPECT_EQ(one.axis("T"), shape.T) << name;
    EXPECT_EQ(one.axis("D"), shape.D) << name;
    if (op == "linear_scan") {
      EXPECT_EQ(one.axis("d"), shape.d) << name;
    }
    EXPECT_EQ(one.decay, DecayKind::kLogDecay) << name;
    EXPECT_TRUE(one.gate && !one.fp32_decay) << name;
    EXPECT_TRUE(one.has_direction("forward") && one.has_direction("backward")) << name;
  }
  const auto sweep = select_cases(load_cases(op), "sweep_*", "bench");
  std::set<std::pair<std::int64_t, std::int64_t>> sizes;
  for (const Case& one : sweep) sizes.emplace(one.axis("B"), one.axis("T"));
  EXPECT_EQ(sizes.size(), 16u) << op;
}

TEST(ScanCases, EveryMeasuredSizeIsThere) {
  expect_named("gated_scan",
               {{"b8_t4096_d1024", {8, 4096, 0, 1024}}, {"b8_t4096_d2048", {8, 4096, 0, 2048}}});
  expect_named("linear_scan", {{"b4_t2048_d256_d64", {4, 2048, 256, 64}},
                               {"b16_t2048_d256_d64", {16, 2048, 256, 64}},
                               {"b8_t4096_d1024", {8, 4096, 1024, 1024}}});
}

TEST(ScanCases, TheTablesCoverTheArguments) {
  for (const char* op : {"gated_scan", "linear_scan"}) {
    std::set<std::int64_t> T, D;
    std::set<DecayKind> kinds;
    std::set<DecayDistribution> distributions;
    std::set<States> states;
    std::set<Strides> strides;
    std::set<bool> gates, fp32_decays;
    std::set<Kept> kept;
    bool lists = false;
    for (const Case& one : select_cases(load_cases(op), "", "check")) {
      T.insert(one.axis("T"));
      D.insert(one.axis("D"));
      kinds.insert(one.decay);
      distributions.insert(one.distribution);
      states.insert(one.states);
      strides.insert(one.strides);
      gates.insert(one.gate);
      fp32_decays.insert(one.fp32_decay);
      kept.insert(one.kept);
      lists |= one.cu_seqlens.has_value();
    }
    for (const std::int64_t length : {0, 1, 63, 64, 65, 127, 128, 129, 255, 256, 257}) {
      EXPECT_EQ(T.count(length), 1u) << op << " " << length;
    }
    for (const std::int64_t width : {1, 7, 64, 1000}) EXPECT_EQ(D.count(width), 1u) << op << width;
    EXPECT_EQ(kinds, (std::set<DecayKind>{DecayKind::kDecay, DecayKind::kLogDecay})) << op;
    EXPECT_EQ(distributions.size(), 12u) << op;
    EXPECT_EQ(states.size(), 5u) << op;
    EXPECT_EQ(strides.size(), 7u) << op;
    EXPECT_EQ(gates.size(), 2u) << op;
    EXPECT_EQ(fp32_decays.size(), 2u) << op;
    EXPECT_EQ(kept.size(), 3u) << op;
    EXPECT_TRUE(lists) << op;
    std::set<std::int64_t> small_T;  // under compute-sanitizer
    for (const Case& one : select_cases(load_cases(op), "", "sanitizer")) {
      small_T.insert(one.axis("T"));
    }
    for (const std::int64_t length : {0, 1, 65, 129, 257, 1000}) {
      EXPECT_EQ(small_T.count(length), 1u) << op << " " << length;
    }
    for (const char* kind : {"decay", "log_decay"}) {  // exp(-100) at each of 1000 tokens
      const auto found = select_cases(load_cases(op), "underflow_" + std::string(kind), "check");
      ASSERT_EQ(found.size(), 1u) << op << " " << kind;
      EXPECT_EQ(found[0].distribution, DecayDistribution::kMinus100);
      EXPECT_EQ(found[0].axis("T"), 1000);
    }
  }
}

/// Four tensors of the forward, seven of the backward; linear_scan's x and states where a training
/// step writes and reads them.
TEST(ScanCases, CostCountsEachTensorOnce) {
  const Case one = select_cases(load_cases("gated_scan"), "sweep_b4_t512", "")[0];
  const auto cost = [&](const Case& of, const Operation& operation) {
    return operation.cost(operation.make(of, DType::kFloat16, 1));
  };
  constexpr double kTensor = 4.0 * 512 * 64 * 2;
  EXPECT_EQ(cost(one, find_operation("gated_scan")).bytes, 4 * kTensor);
  constexpr double kStates = 4.0 * (512 / 128) * 64 * 4;
  EXPECT_EQ(cost(one, find_operation("gated_scan", "backward")).bytes, 7 * kTensor + kStates);
  EXPECT_EQ(cost(one, find_operation("gated_scan", "forward_backward")).bytes,
            11 * kTensor + 2 * kStates);
  EXPECT_EQ(cost(one, find_operation("gated_scan")).flops, 0);

  const Case linear = select_cases(load_cases("linear_scan"), "sweep_b4_t512", "")[0];
  constexpr double kInput = 4.0 * 512 * 256 * 2, kWeight = 256.0 * 64 * 2;
  EXPECT_EQ(cost(linear, find_operation("linear_scan")).flops, 2.0 * 4 * 512 * 256 * 64);
  constexpr double kForward = 3 * kTensor + kInput + kWeight;
  EXPECT_EQ(cost(linear, find_operation("linear_scan")).bytes, kForward);
  constexpr double kKept = kTensor + kStates;
  constexpr double kBackward = 5 * kTensor + 2 * (kInput + kWeight) + kKept;
  const Operation& backward = find_operation("linear_scan", "backward");
  const Operation& both = find_operation("linear_scan", "forward_backward");
  EXPECT_EQ(cost(linear, backward).bytes, kBackward);
  EXPECT_EQ(cost(linear, backward).flops, 2 * cost(linear, find_operation("linear_scan")).flops);
  EXPECT_EQ(cost(linear, both).bytes, kForward + kKept + kBackward);
  Case not_kept = linear;
  not_kept.kept = Kept::kNo;
  EXPECT_EQ(cost(not_kept, backward).bytes, kBackward - kKept);
  EXPECT_EQ(cost(not_kept, both).bytes, kForward + kBackward - kKept);
}

/// A table's fields are its op's.
TEST(ScanCases, RefusalsNameTheField) {
  const std::string fields = R"("dtype": ["bf16"], "tags": [])";
  const auto text = [&](const std::string& op, const std::string& more) -> std::string {
    try {
      parse_cases(op, R"([{"name": "a", )" + more + ", " + fields + "}]", "f.json");
    } catch (const std::runtime_error& error) {
      return error.what();
    }
    return "accepted";
  };
  const std::string decay = R"("decay": {"kind": "decay", "distribution": "zero"})";
  const std::string axes = R"("axes": {"B": 1, "T": 2, "D": 3})";
  EXPECT_EQ(text("gated_scan", axes + ", " + decay), "accepted");
  EXPECT_NE(text("linear_scan", axes + ", " + decay).find("axes.d: is missing"), std::string::npos);
  EXPECT_NE(text("gated_scan", R"("axes": {"B": 1, "T": 2, "H": 3}, )" + decay)
                .find("axes.H: unknown field (known: B, T, D)"),
            std::string::npos);
  EXPECT_NE(text("gated_scan", axes + R"(, "scale": 1, )" + decay).find("scale: unknown field"),
            std::string::npos);
  EXPECT_NE(text("gated_scan", axes + R"(, "decay": {"kind": "none"})")
                .find("decay.kind: must be one of decay, log_decay"),
            std::string::npos);
  EXPECT_NE(text("gated_scan", axes + R"(, "gate": true, )" + decay)
                .find("gate: must be one of silu, none, got true"),
            std::string::npos);
  const std::string kept = R"("axes": {"B": 1, "T": 2, "d": 1, "D": 3}, "kept": "n", )";
  EXPECT_NE(text("linear_scan", kept + decay).find("kept: must be one of yes, training, no"),
            std::string::npos);
  EXPECT_NE(text("projection", R"("axes": {"M": 1, "d": 1}, "segments": ["8 none"], "kept": "no")")
                .find("kept: must be yes or training"),
            std::string::npos);
  EXPECT_EQ(text("nothing", axes + ", " + decay), "no cases for op nothing");
}

}  // namespace
}  // namespace tandem::tools
