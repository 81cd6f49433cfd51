// cases/gla.json: it holds the sizes that are measured and the kinds of call that are checked, and
// what is wrong in a table is named by file, case and field.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <set>

#include "cli/cases/cases.h"
#include "cli/cases/lengths.h"
#include "cli/ops/gla.h"

namespace tandem::tools {
namespace {

struct Shape {
  std::int64_t B, T, H, HQ, K, V;
  DecayKind decay = DecayKind::kPerToken;
};

TEST(Cases, EveryMeasuredForwardSizeIsThere) {
  const std::map<std::string, Shape> named = {
      {"b4h32_t1024_d64", {4, 1024, 32, 32, 64, 64}},
      {"b4h32_t4096_d64", {4, 4096, 32, 32, 64, 64}},
      {"b4h32_t4096_d128", {4, 4096, 32, 32, 128, 128}},
      {"train_b8h16_t4096_d128", {8, 4096, 16, 16, 128, 128}},
      {"long_b4h32_t16384_d64", {4, 16384, 32, 32, 64, 64}},
      {"few_b1h16_t8192_d128", {1, 8192, 16, 16, 128, 128}},
      {"few_b1h8_t32768_d128", {1, 32768, 8, 8, 128, 128}},
      {"few_b1h8_t32768_d64", {1, 32768, 8, 8, 64, 64}},
      {"few_b1h32_t2048_d128", {1, 2048, 32, 32, 128, 128}},
      {"fla_b1h96_t8192_d128", {1, 8192, 96, 96, 128, 128}},
      {"fla_b2h16_t16384_d128", {2, 16384, 16, 16, 128, 128}},
      {"fla_b4h16_t2048_d128", {4, 2048, 16, 16, 128, 128}},
      {"fla_b4h64_t4096_d128", {4, 4096, 64, 64, 128, 128}},
      {"fla_b8h32_t2048_d256", {8, 2048, 32, 32, 256, 256}},
      {"fla_b8h8_t1024_d64", {8, 1024, 8, 8, 64, 64}},
      {"varlen_mixed_h16_d128", {1, 131072, 16, 16, 128, 128}},
      {"varlen_equal_h16_d128", {1, 131072, 16, 16, 128, 128}},
      {"varlen_equal_n32_h16_d128", {1, 131072, 16, 16, 128, 128}},
      {"prompt_b1h8_t32768_d128", {1, 32768, 8, 8, 128, 128}},
      {"mamba2_2b7", {8, 4096, 80, 1, 128, 64}},
      {"mamba2_780m_b1", {1, 2048, 48, 1, 128, 64}},
      {"gla_340m_b1", {1, 2048, 4, 4, 128, 256}},
      {"nemotron_h_8b", {4, 8192, 128, 8, 128, 64}},
      {"falcon_h1", {4, 4096, 32, 1, 256, 64}},
      {"minimax_lightning", {1, 16384, 64, 64, 128, 128, DecayKind::kConstant}},
      {"retnet", {4, 2048, 8, 8, 256, 512, DecayKind::kConstant}},
      {"mid_b2h24_t6000_d128", {2, 6000, 24, 24, 128, 128}},
      {"mid_b1h40_t8192_d128", {1, 8192, 40, 40, 128, 128}},
      {"mid_b1h64_t8192_d64", {1, 8192, 64, 64, 64, 64}},
      {"wave_b1h160_t8192_d64", {1, 8192, 160, 160, 64, 64}},
      {"wave_b1h160_t8192_d128", {1, 8192, 160, 160, 128, 128}}};
  std::size_t found = 0;
  for (const Case& one : select_cases(load_cases("gla"), "", "bench")) {
    if (!one.has_direction("forward")) continue;
    ASSERT_EQ(named.count(one.name), 1u) << one.name;
    const Shape& shape = named.at(one.name);
    EXPECT_EQ(one.axis("B"), shape.B) << one.name;
    EXPECT_EQ(one.axis("T"), shape.T) << one.name;
    EXPECT_EQ(one.axis("H"), shape.H) << one.name;
    EXPECT_EQ(one.axis("HQ"), shape.HQ) << one.name;
    EXPECT_EQ(one.axis("K"), shape.K) << one.name;
    EXPECT_EQ(one.axis("V"), shape.V) << one.name;
    EXPECT_EQ(one.decay, shape.decay) << one.name;
    EXPECT_EQ(one.distribution, DecayDistribution::kNormalBench) << one.name;
    ++found;
  }
  EXPECT_EQ(found, named.size());
}

TEST(Cases, DecodeIsAStepAndMovesTheStateTwice) {
  const auto cases = select_cases(load_cases("gla"), "decode_b64h32_d128", "bench");
  ASSERT_EQ(cases.size(), 1u);
  EXPECT_EQ(cases[0].directions, (std::vector<std::string>{"step"}));
  const Operation& step = find_operation("gla", "step");
  const TensorSet set = step.make(cases[0], DType::kBFloat16, 1);
  EXPECT_EQ(step.shape(set), "B64 H32 K128 V128 state fp32");
  constexpr double kState = 64.0 * 32 * 128 * 128 * 4, kActivation = 64.0 * 32 * 128 * 2;
  EXPECT_EQ(step.cost(set).bytes, 2 * kState + 4 * kActivation + 64 * 32 * 4);
}

TEST(Cases, EveryKindOfCallIsChecked) {
  std::set<std::int64_t> T, H;
  std::set<DecayKind> kinds;
  std::set<DecayDistribution> distributions;
  std::set<States> states;
  std::set<Strides> strides;
  bool grouped = false, unequal = false, k96 = false, lists = false;
  for (const Case& one : select_cases(load_cases("gla"), "", "check")) {
    T.insert(one.axis("T"));
    H.insert(one.axis("H"));
    kinds.insert(one.decay);
    distributions.insert(one.distribution);
    states.insert(one.states);
    strides.insert(one.strides);
    grouped |= one.axis("HQ") < one.axis("H");
    unequal |= one.axis("K") != one.axis("V");
    k96 |= one.axis("K") == 96;
    lists |= one.cu_seqlens.has_value();
  }
  for (const std::int64_t length : {0, 1, 63, 64, 65, 127, 1000, 4097})
    EXPECT_EQ(T.count(length), 1u);
  for (const std::int64_t heads : {1, 3, 8}) EXPECT_EQ(H.count(heads), 1u);
  EXPECT_EQ(kinds.size(), 3u);
  EXPECT_EQ(distributions.size(), 14u);
  EXPECT_EQ(states.size(), 5u);
  EXPECT_EQ(strides.size(), 7u);
  EXPECT_TRUE(grouped && unequal && k96 && lists);
  EXPECT_FALSE(select_cases(load_cases("gla"), "", "sanitizer").empty());
}

/// Lengths of the sequences of a case.
std::vector<std::int64_t> lengths_of(const std::string& name) {
  const Case one = select_cases(load_cases("gla"), name, "").at(0);
  std::vector<std::int64_t> lengths;
  for (std::size_t n = 0; n + 1 < one.cu_seqlens->size(); ++n) {
    lengths.push_back((*one.cu_seqlens)[n + 1] - (*one.cu_seqlens)[n]);
  }
  EXPECT_EQ(one.cu_seqlens->front(), 0);
  EXPECT_EQ(one.cu_seqlens->back(), one.axis("T"));
  return lengths;
}

/// Mixed and equal: as many sequences of as many tokens.
TEST(Cases, DrawnLengths) {
  std::vector<std::int64_t> mixed = lengths_of("varlen_mixed_h16_d128");
  EXPECT_EQ((std::vector<std::int64_t>(mixed.begin(), mixed.begin() + 6)),
            (std::vector<std::int64_t>{9, 4, 6, 34, 313, 102}));
  std::sort(mixed.begin(), mixed.end());
  EXPECT_EQ(mixed.size(), 1000u);
  EXPECT_GE(mixed.front(), 1);
  // Scaled by 131072 / (1000 * 4095 / ln 4096) = 0.27.
  EXPECT_NEAR(static_cast<double>(mixed.back()), 0.27 * 4096, 0.02 * 4096);
  EXPECT_NEAR(static_cast<double>(mixed[500]), 0.27 * 64, 8);
  const auto equal = lengths_of("varlen_equal_h16_d128");
  EXPECT_EQ(equal.size(), 1000u);
  for (const std::int64_t length : equal) EXPECT_TRUE(length == 131 || length == 132) << length;
  EXPECT_EQ(lengths_of("varlen_equal_n32_h16_d128"), std::vector<std::int64_t>(32, 4096));
}

TEST(Cases, DrawnLengthsAreWhole) {
  const auto draw = [](std::int64_t sequences, std::int64_t tokens, std::uint64_t seed) {
    return draw_cu_seqlens({LengthRule::Distribution::kLogUniform, sequences, 1, 1000}, tokens,
                           seed);
  };
  EXPECT_EQ(draw(3, 3, 1), (std::vector<std::int32_t>{0, 1, 2, 3}));
  EXPECT_EQ(draw(1, 77, 1), (std::vector<std::int32_t>{0, 77}));
  EXPECT_EQ(draw(50, 5000, 1), draw(50, 5000, 1));
  EXPECT_NE(draw(50, 5000, 1), draw(50, 5000, 2));
}

/// Every T up to two chunks and two; every decay where a sequence is long and heads are few.
TEST(Cases, ShortAndLongSequencesAreCovered) {
  std::set<std::int64_t> lengths;
  for (const Case& one : select_cases(load_cases("gla"), "every_*", "check")) {
    lengths.insert(one.axis("T"));
    EXPECT_EQ(one.states, States::kBoth);
  }
  EXPECT_EQ(lengths.size(), 130u);
  EXPECT_EQ(*lengths.begin(), 1);
  EXPECT_EQ(*lengths.rbegin(), 130);
  for (const std::string glob : {"split_*_h1_*", "split_*_h2_*"}) {
    std::set<DecayDistribution> distributions;
    for (const Case& one : select_cases(load_cases("gla"), glob, "check")) {
      EXPECT_GE(one.axis("T"), 8192);
      EXPECT_EQ(one.states, States::kBoth);
      distributions.insert(one.distribution);
    }
    EXPECT_EQ(distributions.size(), 13u) << glob;
  }
}

/// Tensors of more than 2^31 elements, all four; selected by nothing but their tag.
TEST(Cases, HugeOnesAreAskedFor) {
  bool keys = false, values = false;
  for (const Case& one : select_cases(load_cases("gla"), "", "huge")) {
    EXPECT_TRUE(one.tagged("large")) << one.name;
    const std::int64_t tokens = one.axis("B") * one.axis("T");
    keys |= tokens * one.axis("HQ") * one.axis("K") > std::int64_t{1} << 31;
    values |= tokens * one.axis("H") * one.axis("V") > std::int64_t{1} << 31;
  }
  EXPECT_TRUE(keys && values);
  EXPECT_TRUE(select_cases(load_cases("gla"), "huge_*", "").empty());
  EXPECT_TRUE(select_cases(load_cases("gla"), "huge_*", "large").empty());
}

TEST(Cases, SelectByGlobAndTag) {
  const auto all = load_cases("gla");
  EXPECT_EQ(select_cases(all, "b4h32_*", "").size(), 5u);
  EXPECT_EQ(select_cases(all, "b4h32_*", "check").size(), 0u);
  EXPECT_EQ(select_cases(all, "b4h32_*,none_*,t63_h1_d64", "").size(), 6u);
  EXPECT_EQ(select_cases(all, "", "").size() + select_cases(all, "", "huge").size(), all.size());
}

TEST(Cases, ListsExpandToTheCrossProduct) {
  const auto cases = parse_cases("gla", R"([{"name": "t{T}_{distribution}_{states}",
      "axes": {"B": 1, "T": [1, 2], "H": 4, "HQ": 2, "K": 8}, "dtype": ["bf16", "fp32"],
      "decay": {"kind": "per_token", "distribution": ["normal", "zero"]},
      "states": ["none", "in_place"], "tags": ["check"], "seed": 7}])",
                                 "f.json");
  ASSERT_EQ(cases.size(), 8u);
  EXPECT_EQ(cases[0].name, "t1_normal_none");
  EXPECT_EQ(cases[7].name, "t2_zero_in_place");
  EXPECT_EQ(cases[7].states, States::kInPlace);
  EXPECT_EQ(cases[7].axis("V"), 8);
  EXPECT_EQ(cases[7].dtypes, (std::vector<DType>{DType::kBFloat16, DType::kFloat32}));
  EXPECT_EQ(cases[7].seed, 7u);
  const auto range = parse_cases("gla", R"([{"name": "t{T}", "axes": {"B": 1, "T": "9..11", "H": 4,
      "K": 8}, "dtype": ["bf16"], "decay": {"kind": "none"}, "tags": []}])",
                                 "f.json");
  ASSERT_EQ(range.size(), 3u);
  EXPECT_EQ(range[2].name, "t11");
  EXPECT_EQ(range[2].axis("T"), 11);
}

/// What Python reads is a table too, of the same cases.
TEST(Cases, AWrittenTableReadsBackAsItself) {
  for (const char* op : {"gla", "gated_scan", "linear_scan", "gated_output", "attention",
                         "attention_weights", "causal_conv1d"}) {
    const std::vector<Case> cases = load_cases(op);
    const std::string table = write_cases(op, cases);
    const std::vector<Case> again = parse_cases(op, table, "f.json");
    ASSERT_EQ(again.size(), cases.size());
    for (std::size_t i = 0; i < cases.size(); ++i) EXPECT_EQ(again[i], cases[i]) << cases[i].name;
    EXPECT_EQ(write_cases(op, again), table);
  }
}

TEST(Cases, AWrittenTableSpellsOutDefaults) {
  const std::string step = R"([{"name": "k{K}", "directions": ["step"], "axes": {"B": 1, "H": 4,
      "K": [8, 16]}, "dtype": ["bf16"], "decay": {"kind": "none"}, "scale": 0.1, "tags": []}])";
  EXPECT_EQ(write_cases("gla", parse_cases("gla", step, "f.json")),
            R"([{"name":"k8","directions":["step"],"axes":{"B":1,"T":1,"H":4,"K":8,"HQ":4,"V":8},)"
            R"("dtype":["bf16"],"decay":{"kind":"none"},"states":"none","state_dtype":"fp32",)"
            R"("saved_states":"no","strides":"contiguous","scale":0.1,"tags":[],"seed":0},
{"name":"k16","directions":["step"],"axes":{"B":1,"T":1,"H":4,"K":16,"HQ":4,"V":16},)"
            R"("dtype":["bf16"],"decay":{"kind":"none"},"states":"none","state_dtype":"fp32",)"
            R"("saved_states":"no","strides":"contiguous","scale":0.1,"tags":[],"seed":0}]
)");
  const std::string packed = R"([{"name": "a", "axes": {"B": 1, "T": 7, "D": 8}, "dtype": ["fp16"],
      "decay": {"kind": "log_decay", "distribution": "zero"},
      "lengths": {"distribution": "equal", "sequences": 2}, "tags": ["check", "bench"]}])";
  EXPECT_EQ(
      write_cases("gated_scan", parse_cases("gated_scan", packed, "f.json")),
      R"([{"name":"a","directions":["forward"],"axes":{"B":1,"T":7,"D":8},"dtype":["fp16"],)"
      R"("decay":{"kind":"log_decay","distribution":"zero"},"decay_dtype":"same",)"
      R"("gate":"silu","states":"none","kept":"yes","strides":"contiguous","cu_seqlens":[0,3,7],)"
      R"("tags":["bench","check"],"seed":0}]
)");
}

TEST(Cases, DirectionsAreForwardUnlessGiven) {
  const std::string rest = R"("dtype":["bf16"],"decay":{"kind":"none"},"tags":[]})";
  const auto cases = parse_cases(
      "gla",
      R"([{"name":"a","axes":{"B":1,"T":5,"H":4,"K":8},)" + rest +
          R"(,{"name":"b","directions":["forward","backward"],"axes":{"B":1,"T":5,"H":4,"K":8},)" +
          rest +
          R"(,{"name":"c","directions":["step"],"axes":{"B":1,"H":4,"K":8},"state_dtype":"bf16",)" +
          rest + "]",
      "f.json");
  EXPECT_EQ(cases[0].directions, (std::vector<std::string>{"forward"}));
  EXPECT_TRUE(cases[1].has_direction("forward") && cases[1].has_direction("backward"));
  EXPECT_FALSE(cases[1].has_direction("step"));
  EXPECT_EQ(cases[2].axis("T"), 1);
  EXPECT_EQ(cases[1].state_dtype, DType::kFloat32);
  EXPECT_EQ(cases[2].state_dtype, DType::kBFloat16);
}

TEST(Cases, EveryDirectionHasAnEntry) {
  for (const Operation& operation : operations()) {
    for (const Case& one : load_cases(operation.name)) {
      for (const std::string& direction : one.directions) {
        EXPECT_NO_THROW(find_operation(operation.name, direction)) << one.name;
      }
    }
  }
  EXPECT_THROW(find_operation("gla", "sideways"), std::runtime_error);
}

TEST(Cases, RefusalsNameFileCaseAndField) {
  const std::string good =
      R"({"name":"a","axes":{"B":1,"T":5,"H":4,"K":8},"dtype":["bf16"],"decay":{"kind":"none"},"tags":[]})";
  ASSERT_EQ(parse_cases("gla", "[" + good + "]", "f.json").size(), 1u);
  struct Spoiled {
    std::string from, to, text;
  };
  const Spoiled spoiled[] = {
      {"\"tags\":[]", "\"tags\":[],\"colour\":1", "case a: colour: unknown field"},
      {"\"T\":5", "\"T\":5,\"Q\":1", "case a: axes.Q: unknown field"},
      {"\"T\":5,", "", "case a: axes.T: is missing"},
      {"\"tags\":[]", "\"tags\":[],\"directions\":[\"up\"]",
       "case a: directions: must be among forward, backward"},
      {"\"tags\":[]", "\"tags\":[],\"directions\":\"step\"", "case a: directions: must be a list"},
      {"\"tags\":[]", "\"tags\":[],\"directions\":[]", "case a: directions: must not be empty"},
      {"\"tags\":[]", "\"tags\":[],\"directions\":[\"forward\",\"forward\"]",
       "case a: directions: names \"forward\" twice"},
      {"\"tags\":[]", "\"tags\":[],\"directions\":[\"step\",\"forward\"]",
       "case a: axes.T: a step is of one token, got 5"},
      {"\"T\":5", "\"T\":-5", "case a: axes.T: must be an integer in [0,2^31), got -5"},
      {"\"T\":5", "\"T\":1.5", "case a: axes.T: must be an integer"},
      {"\"K\":8", "\"K\":0", "case a: axes.K: must be an integer in [1,2^31), got 0"},
      {"\"K\":8", "\"K\":8,\"HQ\":3", "case a: axes.HQ: must divide H"},
      {"\"T\":5", "\"T\":[5,6]", "case a: T: is a list, so the name must contain {T}"},
      {"\"T\":5", "\"T\":[]", "case a: T: must not be an empty list"},
      {"\"T\":5", "\"T\":\"1..3\"", "case a: T: is a list, so the name must contain {T}"},
      {"\"T\":5", "\"T\":\"3..1\"",
       "case a: axes.T: must be an integer, a list of them or a range"},
      {"\"T\":5", "\"T\":\"1..x\"", "case a: axes.T: must be an integer, a list"},
      {"\"T\":5", "\"T\":\"5\"", "case a: axes.T: must be an integer, a list"},
      {"\"name\":\"a\"", "\"name\":\"a{T}\"",
       "name: has a placeholder for a field that is not a list"},
      {"[\"bf16\"]", "\"bf16\"", "case a: dtype: must be a list"},
      {"[\"bf16\"]", "[\"f64\"]",
       "case a: dtype: must be one of bf16, fp16, fp32, fp64, got \"f64\""},
      {"\"none\"", "\"some\"", "case a: decay.kind: must be one of none, constant, per_token"},
      {"\"none\"", "\"constant\"", "case a: decay.distribution: is missing"},
      {"\"none\"", "\"none\",\"distribution\":\"zero\"",
       "case a: decay.distribution: needs a decay kind"},
      {"\"tags\":[]", "\"tags\":[\"fast\"]", "case a: tags: must be among check, bench"},
      {"\"tags\":[]", "\"tags\":[],\"states\":\"all\"",
       "case a: states: must be one of none, initial"},
      {"\"tags\":[]", "\"tags\":[],\"state_dtype\":\"fp16\"",
       "case a: state_dtype: must be one of fp32, bf16, got \"fp16\""},
      {"\"tags\":[]", "\"tags\":[],\"saved_states\":true",
       "case a: saved_states: must be one of yes, no, got true"},
      {"\"tags\":[]", "\"tags\":[],\"saved_states\":\"yes\",\"cu_seqlens\":[0,5]",
       "case a: saved_states: cannot go with cu_seqlens"},
      {"\"T\":5,\"H\":4,\"K\":8}",
       "\"H\":4,\"K\":8},\"directions\":[\"step\"],\"cu_seqlens\":[0,1]",
       "case a: cu_seqlens: a step has none"},
      {"\"tags\":[]", "\"tags\":[],\"strides\":3", "case a: strides: must be one of contiguous"},
      {"\"tags\":[]", "\"tags\":[],\"cu_seqlens\":[0,9]",
       "case a: cu_seqlens: must not decrease or pass T"},
      {"\"tags\":[]", "\"tags\":[],\"cu_seqlens\":[3,2]",
       "case a: cu_seqlens: must not decrease or pass T"},
      {"\"tags\":[]", "\"tags\":[],\"cu_seqlens\":[]", "case a: cu_seqlens: must not be empty"},
      {"\"tags\":[]", "\"tags\":[],\"cu_seqlens\":[0,4294967297]",
       "case a: cu_seqlens: must be an integer in [0,2^31), got 4294967297"},
      {"\"tags\":[]", "\"tags\":[],\"cu_seqlens\":[18446744073709551615]",
       "case a: cu_seqlens: must be an integer in [0,2^31), got 18446744073709551615"},
      {"\"tags\":[]",
       "\"tags\":[],\"lengths\":{\"distribution\":\"equal\",\"sequences\":2147483647}",
       "case a: lengths.sequences: must be at most 65536, got 2147483647"},
      {"\"name\":\"a\"", "\"name\":\"a\\u001b\"",
       "case a\\u001b: name: must have at most 80 characters, all printable"},
      {"\"tags\":[]", "\"tags\":[],\"\\n\":1", "case a: \\u000a: unknown field"},
      {"\"tags\":[]", "\"tags\":[],\"lengths\":{\"distribution\":\"odd\",\"sequences\":2}",
       "case a: lengths.distribution: must be one of equal, log_uniform"},
      {"\"tags\":[]", "\"tags\":[],\"lengths\":{\"distribution\":\"equal\"}",
       "case a: lengths.sequences: is missing"},
      {"\"tags\":[]",
       "\"tags\":[],\"lengths\":{\"distribution\":\"equal\",\"sequences\":2,\"largest\":3}",
       "case a: lengths.largest: unknown field"},
      {"\"tags\":[]",
       "\"tags\":[],\"lengths\":{\"distribution\":\"log_uniform\",\"sequences\":6,\"smallest\":1,"
       "\"largest\":3}",
       "case a: lengths.sequences: must be at most T = 5"},
      {"\"tags\":[]",
       "\"tags\":[],\"lengths\":{\"distribution\":\"log_uniform\",\"sequences\":2,\"smallest\":4,"
       "\"largest\":3}",
       "case a: lengths.largest: must not be below smallest"},
      {"\"tags\":[]",
       "\"tags\":[],\"cu_seqlens\":[0],\"lengths\":{\"distribution\":\"equal\",\"sequences\":2}",
       "case a: lengths: cannot be given beside cu_seqlens"},
      {"\"tags\":[]", "\"tags\":[],\"seed\":-1", "case a: seed: must be an integer"},
      {"\"name\":\"a\"", "\"name\":4", "case number 0: name: must be a string"},
      {"\"name\":\"a\",", "", "case number 0: name: is missing"},
  };
  for (const Spoiled& one : spoiled) {
    std::string json = good;
    const auto at = json.find(one.from);
    ASSERT_NE(at, std::string::npos) << one.from;
    json.replace(at, one.from.size(), one.to);
    try {
      parse_cases("gla", "[" + json + "]", "f.json");
      ADD_FAILURE() << "accepted: " << json;
    } catch (const std::runtime_error& error) {
      EXPECT_EQ(std::string(error.what()).find("f.json: "), 0u) << error.what();
      EXPECT_NE(std::string(error.what()).find(one.text), std::string::npos) << error.what();
    }
  }
  EXPECT_THROW(parse_cases("gla", "[" + good + "," + good + "]", "f.json"), std::runtime_error);
  const auto message = [](const std::string& table) -> std::string {
    try {
      parse_cases("gla", table, "f.json");
    } catch (const std::runtime_error& error) {
      return error.what();
    }
    return "";
  };
  EXPECT_EQ(message(R"([{"name":"a{T}{H}","axes":{"B":1,"T":"1..9999","H":[1,2],"K":8},
                         "dtype":["bf16"],"decay":{"kind":"none"},"tags":[]}])"),
            "f.json: case a{T}{H}: stands for more than 10000 cases");
  EXPECT_EQ(message("[{\"name\":\"a\",\"axes\":{\"T\x7f\":[1]}}]"),
            "f.json: case a: T\\u007f: is a list, so the name must contain {T\\u007f}");
  EXPECT_EQ(message("[3]"), "f.json: case number 0: must be an object");
  EXPECT_EQ(message(std::string(100000, '[')),
            "f.json: not valid JSON: nested deeper than 32 levels");
  EXPECT_THROW(parse_cases("gla", "{}", "f.json"), std::runtime_error);
  EXPECT_THROW(parse_cases("gla", "[", "f.json"), std::runtime_error);
  EXPECT_THROW(load_cases("nothing"), std::runtime_error);
  EXPECT_THROW(load_cases("gla", "/does/not/exist.json"), std::runtime_error);
}

TEST(Cases, FieldsOfGatedOutputFitTogether) {
  const auto message = [](const std::string& fields) -> std::string {
    try {
      parse_cases("gated_output",
                  R"([{"name":"a","axes":{"M":1,"d_in":8,"d":4},"dtype":["bf16"],"tags":[])" +
                      fields + "}]",
                  "f.json");
    } catch (const std::runtime_error& error) {
      return error.what();
    }
    return "";
  };
  const std::string group = R"(,"group_norm":"same")";
  EXPECT_EQ(message(""), "");
  EXPECT_EQ(message(group + R"(,"group_width":4,"group_weight":"by_column","behind_gate":"yes")"),
            "");
  EXPECT_EQ(message(R"(,"output_gate":"relu")"),
            "f.json: case a: output_gate: must be none or one of plain, silu, sigmoid, got relu");
  EXPECT_EQ(message(R"(,"output_norm":"norm")"),
            "f.json: case a: output_norm: must be one of none, layer_norm, rms_norm, got norm");
  EXPECT_EQ(message(group + R"(,"group_width":3)"),
            "f.json: case a: group_width: must divide d_in");
  EXPECT_EQ(message(R"(,"group_width":4)"), "f.json: case a: group_width: needs a group_norm");
  EXPECT_EQ(message(group + R"(,"output_gate":"none","behind_gate":"yes")"),
            "f.json: case a: behind_gate: needs a group_norm and a gate");
  EXPECT_EQ(message(R"(,"norm":"same")"), "f.json: case a: norm: needs an output_norm");
  EXPECT_EQ(message(R"(,"sum":"yes")"), "f.json: case a: sum: needs an output_norm");
  EXPECT_EQ(message(R"(,"output_gate":"none","gated":"again")"),
            "f.json: case a: gated: needs a group_norm or a gate");
  EXPECT_EQ(message(R"(,"rows":"extreme")"),
            "f.json: case a: rows: needs a group_norm, or an output_norm without a gate");
}

TEST(Cases, InputsDependOnTheSeedAlone) {
  const Case one = select_cases(load_cases("gla"), "strides_odd_d64", "")[0];
  const TensorSet a = make_gla(one, DType::kBFloat16, 1), b = make_gla(one, DType::kBFloat16, 1);
  const TensorSet c = make_gla(one, DType::kBFloat16, 2);
  const std::size_t q = a.get("q").buffer;
  EXPECT_EQ(std::memcmp(a.buffers[q].data(), b.buffers[q].data(), a.buffers[q].size()), 0);
  EXPECT_NE(std::memcmp(a.buffers[q].data(), c.buffers[q].data(), a.buffers[q].size()), 0);
}

TEST(Cases, RandomNumbersAreNormal) {
  const RandomStream random(1, "x");
  double sum = 0, squares = 0, fourth = 0;
  constexpr int kCount = 400000;
  for (int i = 0; i < kCount; ++i) {
    const double x = random.normal(i);
    sum += x;
    squares += x * x;
    fourth += x * x * x * x;
  }
  EXPECT_NEAR(sum / kCount, 0, 0.01);
  EXPECT_NEAR(squares / kCount, 1, 0.01);
  EXPECT_NEAR(fourth / kCount, 3, 0.1);
}

/// B T H (2 C K + ...) worked out by hand for one shape.
TEST(Cases, CostCountsEachTensorOnce) {
  const Case one = select_cases(load_cases("gla"), "b4h32_t1024_d64", "")[0];
  const Cost cost = find_operation("gla").cost(make_gla(one, DType::kBFloat16, 1));
  const double tokens = 4.0 * 1024 * 32;
  EXPECT_EQ(cost.bytes, tokens * (4 * 64 * 2 + 4));
  EXPECT_EQ(cost.flops, tokens * 2 * (64 * 64 + 2 * 64 * 64 + 64 * 64));
}

/// 4 activations of the forward and 7 of the backward; the decay twice, and its gradient.
TEST(Cases, CostOfBothCallsIsTheirSum) {
  const Case one = select_cases(load_cases("gla"), "b4h32_t1024_d64", "")[0];
  const auto cost = [&](const Operation& operation) {
    return operation.cost(operation.make(one, DType::kBFloat16, 1));
  };
  const Cost both = cost(find_operation("gla", "forward_backward"));
  EXPECT_EQ(both.bytes, 4.0 * 1024 * 32 * (11 * 64 * 2 + 3 * 4));
  EXPECT_EQ(both.bytes,
            cost(find_operation("gla")).bytes + cost(find_operation("gla", "backward")).bytes);
  EXPECT_EQ(both.flops,
            cost(find_operation("gla")).flops + cost(find_operation("gla", "backward")).flops);
}

/// The backward reads the state that the forward began with, so this cannot be updated in place.
TEST(Cases, ForwardAndBackwardShareNoState) {
  const Case one = select_cases(load_cases("gla"), "states_in_place_t130", "")[0];
  const TensorSet set = find_operation("gla", "forward_backward").make(one, DType::kBFloat16, 1);
  EXPECT_NE(set.get("final_state").buffer, set.get("initial_state").buffer);
}

}  // namespace
}  // namespace tandem::tools
