// What gla's calls refuse beyond their tables (test_refusals.cpp), and in which words.
#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "refusals.h"

namespace tandem {
namespace {

/// Calls check(signature, keys) for every call of gla; keys is its q, or k where there is no q.
template <class Check>
void for_each_gla_call(const Check& check) {
  for_each_call([&](const Signature& signature, bool lists) {
    if (std::string(signature.name()).rfind("gla_", 0) != 0) return;
    check(Call(signature, lists), signature.parameters().front());
  });
}

TEST(GlaRefusals, HeadsThatDoNotDivide) {
  for_each_gla_call([](const Call& call, const Parameter& keys) {
    for (const char* name : {"q", "k"}) {
      const Parameter* row = call.signature().find(name);
      if (row == nullptr) continue;
      spoil(call, *row, [](TensorView& view) {
        Dims shape = view.shape;
        shape[shape.rank() - 2] = 3;
        view = shaped(view, shape);
      });
    }
    call.expect_refused(std::string(keys.name) +
                        " must have a number of heads HQ that divides H = 4, got HQ = 3");
  });
}

TEST(GlaRefusals, AScaleBeyondFp32) {
  for_each_gla_call([](const Call& call, const Parameter&) {
    const Parameter* scale = call.signature().find("scale");
    if (scale == nullptr) return;
    for (const auto& [value, text] : {std::pair{1e300, "1e+300"}, {-4e38, "-4e+38"}}) {
      scale->set_value(call.args(), value);
      call.expect_refused("scale must be in fp32's range, got " + std::string(text));
    }
    scale->set_value(call.args(), 3e38);
    EXPECT_NO_THROW(call.signature().run(call.args(), {}, {}));
  });
}

TEST(GlaRefusals, ADecayPerChannelIsNotBuiltYet) {
  for_each_gla_call([](const Call& call, const Parameter&) {
    const Parameter& decay = *call.signature().find("log_decay");
    const Dims right = call.view(decay).shape;
    std::vector<std::int64_t> extents(right.begin(), right.end());
    extents.push_back(8);
    const Dims wrong(extents);
    spoil(call, decay, [&](TensorView& view) { view = shaped(view, wrong); });
    const std::string choices = right.rank() == 3 ? "[H] or [B,T,H]" : "[H] or [B,H]";
    try {
      call.signature().run(call.args(), {}, {});
      ADD_FAILURE() << "was accepted";
    } catch (const Unsupported& error) {
      EXPECT_EQ(error.what(), "[" + std::string(call.signature().name()) +
                                  "] log_decay must have shape " + choices + ", got " +
                                  to_string(wrong) + ": a decay per key channel is not built yet");
    }
  });
}

/// The gradient of a constant decay is [H], too.
TEST(GlaRefusals, ADecayGradientOfAnotherShapeThanTheDecay) {
  const Signature& signature = *find_signature("gla_backward");
  const Call call(signature, false);
  const Parameter& gradient = *signature.find("d_log_decay");
  spoil(call, gradient, [](TensorView& view) { view = shaped(view, {4}); });
  call.expect_refused("d_log_decay must have shape [B,T,H] = [2,5,4], got [4]");
  spoil(call, *signature.find("log_decay"), [](TensorView& view) { view = shaped(view, {4}); });
  EXPECT_NO_THROW(signature.run(call.args(), {}, {}));
  spoil(call, gradient, [](TensorView& view) { view = shaped(view, {2, 5, 4}); });
  call.expect_refused("d_log_decay must have shape [H] = [4], got [2,5,4]");
}

TEST(GlaRefusals, SavedStatesOfAnotherShapeOrOfSequences) {
  for (const char* name : {"gla_forward", "gla_backward"}) {
    const Signature& signature = *find_signature(name);
    const Parameter& saved = *signature.find("saved_states");
    const Call dense(signature, false);
    spoil(dense, saved, [](TensorView& view) { view = shaped(view, {2, 1, 4, 8, 16}); });
    dense.expect_refused(
        "saved_states must have shape [B,T/128,H,V,K] = [2,1,4,16,8], got [2,1,4,8,16]");
    const Call packed(signature, true);
    std::vector<float> states(4 * 16 * 8);
    saved.set_view(packed.args(), TensorView::contiguous(states.data(), DType::kFloat32,
                                                         packed.shape(saved.axes.back())));
    packed.expect_refused("saved_states cannot go with cu_seqlens");
  }
}

TEST(GlaRefusals, AStateOfBf16IsNone) {
  const Call call(*find_signature("gla_step"), false);
  spoil(call, *call.signature().find("state"),
        [](TensorView& view) { view.dtype = DType::kBFloat16; });
  EXPECT_NO_THROW(call.signature().run(call.args(), {}, {}));
}

}  // namespace
}  // namespace tandem
